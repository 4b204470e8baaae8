-- Configuration documents of $run by their fingerprint. Grain: fingerprint. Input: config_records.
SELECT fingerprint, any_value(document) AS document
FROM config_records
WHERE run = $run AND kind = 'engine_config'
GROUP BY fingerprint
