-- Configuration documents of $run. Grain: fingerprint, with the number of rollout sequences that name it (sampling params and engine
-- configurations). Inputs: config_records, rollout_sequences.
WITH used AS (
    SELECT sampling_id AS fingerprint, count(*) AS sequences FROM rollout_sequences WHERE run = $run GROUP BY ALL
    UNION ALL
    SELECT engine_config_id, count(*) FROM rollout_sequences WHERE run = $run GROUP BY ALL
)
SELECT c.fingerprint, c.kind, any_value(c.document ORDER BY c.time DESC) AS document, min(c.time) AS time,
       coalesce(any_value(u.sequences), 0) AS sequences
FROM config_records AS c
LEFT JOIN used AS u USING (fingerprint)
WHERE c.run = $run
GROUP BY c.fingerprint, c.kind
ORDER BY min(c.time), c.fingerprint
