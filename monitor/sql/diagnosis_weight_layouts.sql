-- What the hashes of fingerprints in $run are of. Grain: layout. Inputs: config_records.
SELECT fingerprint, any_value(document) AS document FROM config_records WHERE run = $run AND kind = 'weight_layout' GROUP BY fingerprint
