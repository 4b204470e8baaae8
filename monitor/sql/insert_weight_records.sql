-- Grain: one row per observed weight update; what workers read of the weights goes to weight_readings. Inputs: incoming (Arrow).
INSERT INTO weight_records BY NAME
SELECT * EXCLUDE (segment_id, row, writer, fingerprint, layout, tensor_hashes, worker, reason) FROM incoming
WHERE source IS DISTINCT FROM 'worker'
