-- Fingerprints of weights in $run, oldest first, of at most the 4,000 newest readings. Grain: reading. `step`: optimizer step whose result the version is.
-- Inputs: weight_readings, weight_records.
WITH steps AS (
    SELECT version, min(step) AS step FROM weight_records WHERE run = $run AND version IS NOT NULL GROUP BY version
), newest AS (
    SELECT * FROM weight_readings WHERE run = $run ORDER BY coalesce(applied_at, time) DESC LIMIT 4000
)
SELECT r.source, r.replica, r.worker, r.version, coalesce(r.step, s.step) AS step, r.fingerprint, r.layout, r.reason, r.tensor_hashes, r.adapter
FROM newest AS r LEFT JOIN steps AS s USING (version)
ORDER BY coalesce(r.applied_at, r.time), r.source, r.replica, r.worker
