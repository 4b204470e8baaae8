-- Everything that happened beside the numbers, as one timeline. Grain: one row per event.
-- Inputs: health_records, weight_records, config_records, step_records with a correction, quarantine.
SELECT run, time, 'health' AS kind, event, severity, component AS source, step, message,
       {'count': count, 'sequences': sequences, 'tokens': tokens, 'details': details}::JSON::VARCHAR AS details
FROM health_records
UNION ALL BY NAME
SELECT run, coalesce(applied_at, time) AS time, 'weights' AS kind, 'weights' AS event, 'info' AS severity,
       concat_ws(' ', source, replica) AS source, step, concat('weights ', coalesce(version, 'of unknown version')) AS message,
       {'version': version, 'requested_at': requested_at, 'started_at': started_at, 'resumed_at': resumed_at,
        'pause_mode': pause_mode, 'cache_cleared': cache_cleared, 'tensors': tensors, 'checksum': checksum}::JSON::VARCHAR
       AS details
FROM weight_records
UNION ALL BY NAME
SELECT run, time, 'config' AS kind, kind AS event, 'info' AS severity, replica AS source, NULL::BIGINT AS step,
       concat(kind, ' ', fingerprint) AS message, document AS details
FROM config_records
WHERE kind <> 'weight_layout'
UNION ALL BY NAME
SELECT run, time, 'correction' AS kind, 'correction' AS event, 'info' AS severity, concat('rank ', rank) AS source, step,
       correction AS message, correction AS details
FROM step_records
WHERE correction IS NOT NULL
UNION ALL BY NAME
SELECT run, moved_at AS time, 'quarantine' AS kind, reason AS event, 'error' AS severity, origin AS source,
       NULL::BIGINT AS step, message, {'path': path, 'bytes': bytes}::JSON::VARCHAR AS details
FROM quarantine
