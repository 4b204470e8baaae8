-- What engine and trainer of each of $runs said of their precision and model. Grain: run, kind, fingerprint. `sequences`: always 0, whether any
-- rollout names it is not looked up. Inputs: config_records.
SELECT run, kind, fingerprint, any_value(document ORDER BY time DESC) AS document, 0::BIGINT AS sequences
FROM config_records
WHERE list_contains($runs::VARCHAR[], run) AND kind IN ('engine_config', 'trainer_config')
GROUP BY run, kind, fingerprint
ORDER BY run, min(time), fingerprint
