-- What happened to the weights of $run between $since and $until, of the engine $replica (null: any). Grain: one row.
-- Inputs: weight_records, weight_readings.
SELECT
    (SELECT count(*) FROM weight_records
     WHERE run = $run AND coalesce(applied_at, time) BETWEEN $since::TIMESTAMPTZ AND $until::TIMESTAMPTZ
       AND (replica IS NULL OR $replica::VARCHAR IS NULL OR replica = $replica::VARCHAR))
    + (SELECT count(*) FROM weight_readings
       WHERE run = $run AND reason = 'unannounced' AND coalesce(applied_at, time) BETWEEN $since::TIMESTAMPTZ AND $until::TIMESTAMPTZ
         AND (replica IS NULL OR $replica::VARCHAR IS NULL OR replica = $replica::VARCHAR)) AS changes
