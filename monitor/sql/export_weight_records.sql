-- The weight records of a run. Grain: record. Inputs: weight_records. Parameters: $run.
SELECT * EXCLUDE (run) FROM weight_records WHERE run = $run ORDER BY time
