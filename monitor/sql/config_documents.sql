-- Configuration documents of $kind in $run. Grain: fingerprint. Input: config_records.
SELECT fingerprint, any_value(document) AS document FROM config_records WHERE run = $run AND kind = $kind GROUP BY fingerprint
