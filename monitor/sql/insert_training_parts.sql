-- Engine requests that trained sequences were sampled in. Grain: one row per training record and part. Inputs: incoming (Arrow).
INSERT INTO training_parts BY NAME
SELECT run, unnest(part_ids) AS part_id, generate_subscripts(part_ids, 1) AS place, segment_id, row
FROM incoming
WHERE part_ids IS NOT NULL
