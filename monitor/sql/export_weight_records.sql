-- The weight records of a run, with the fingerprints that trainers gave and workers read. Grain: record. Inputs: weight_records,
-- weight_readings. Parameters: $run.
SELECT w.* EXCLUDE (run), r.fingerprint, r.layout, r.tensor_hashes, r.worker, r.reason
FROM weight_records AS w
LEFT JOIN weight_readings AS r
    ON r.run = w.run AND r.source = w.source AND r.time = w.time AND r.version IS NOT DISTINCT FROM w.version
        AND r.adapter IS NOT DISTINCT FROM w.adapter
WHERE w.run = $run
UNION ALL BY NAME
SELECT * EXCLUDE (run) FROM weight_readings WHERE run = $run AND source = 'worker'
ORDER BY time
