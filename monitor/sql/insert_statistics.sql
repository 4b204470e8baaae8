-- Grain: one row per training record and pair that could be computed. Inputs: incoming (Arrow), one struct column per pair.
INSERT INTO statistics BY NAME
SELECT run, step, segment_id, row, 'backend' AS pair, unnest(backend) FROM incoming WHERE backend IS NOT NULL
UNION ALL BY NAME
SELECT run, step, segment_id, row, 'update' AS pair, unnest("update") FROM incoming WHERE "update" IS NOT NULL
UNION ALL BY NAME
SELECT run, step, segment_id, row, 'total' AS pair, unnest(total) FROM incoming WHERE total IS NOT NULL
UNION ALL BY NAME
SELECT run, step, segment_id, row, 'reference' AS pair, unnest(reference) FROM incoming WHERE reference IS NOT NULL
