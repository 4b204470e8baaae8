-- Grain: one row per fingerprint of weights. Inputs: incoming (Arrow): weight records.
INSERT INTO weight_readings BY NAME
SELECT run, time, source, replica, worker, version, step, reason, applied_at, fingerprint, layout, tensor_hashes, adapter
FROM incoming
WHERE fingerprint IS NOT NULL
