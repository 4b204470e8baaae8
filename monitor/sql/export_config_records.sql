-- The config records of a run. Grain: record. Inputs: config_records. Parameters: $run.
SELECT * EXCLUDE (run) FROM config_records WHERE run = $run ORDER BY time
