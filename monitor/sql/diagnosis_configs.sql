-- Configuration documents of $run. Grain: fingerprint, with the number of rollout sequences that name it (sampling params and engine
-- configurations). Inputs: config_records, rollout_sequences, folded_rollouts.
WITH rollouts AS (
    SELECT sampling_id, engine_config_id, 1 AS rollouts FROM rollout_sequences WHERE run = $run AND parts IS NULL
    UNION ALL SELECT sampling_id, engine_config_id, rollouts FROM folded_rollouts WHERE run = $run
), used AS (
    SELECT sampling_id AS fingerprint, sum(rollouts)::BIGINT AS sequences FROM rollouts GROUP BY ALL
    UNION ALL
    SELECT engine_config_id, sum(rollouts)::BIGINT FROM rollouts GROUP BY ALL
)
SELECT c.fingerprint, c.kind, any_value(c.document ORDER BY c.time DESC) AS document, min(c.time) AS time,
       coalesce(any_value(u.sequences), 0) AS sequences
FROM config_records AS c
LEFT JOIN used AS u USING (fingerprint)
WHERE c.run = $run AND c.kind <> 'weight_layout'
GROUP BY c.fingerprint, c.kind
ORDER BY min(c.time), c.fingerprint
