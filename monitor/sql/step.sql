-- step_weights: Grain: one row per weight record of $run that names a version. Inputs: weight_records.
SELECT version, step, coalesce(applied_at, time) AS time, source
FROM weight_records
WHERE run = $run AND version IS NOT NULL
