-- The step records of a run. Grain: record. Inputs: step_records. Parameters: $run.
SELECT * EXCLUDE (run) FROM step_records WHERE run = $run ORDER BY time
