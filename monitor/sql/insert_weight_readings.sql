-- Grain: one row per fingerprint of weights. Inputs: incoming (Arrow): weight records. An adapter's weights are not those below it.
INSERT INTO weight_readings BY NAME
SELECT run, time, source, replica, worker, version, step, reason, applied_at, fingerprint, layout, tensor_hashes
FROM incoming
WHERE fingerprint IS NOT NULL AND adapter IS NULL
