-- What trainer and engines said of weight versions in $run. Grain: one row per observation, oldest first. `loaded`: the engine was seen
-- to load weights. Input: weight_records.
SELECT version, step, source, replica, coalesce(applied_at, time) AS time, started_at IS NOT NULL AS loaded, pause_mode,
       cache_cleared, tensors, checksum
FROM weight_records
WHERE run = $run
ORDER BY coalesce(applied_at, time), source
