-- Statistics of sequences that count again. Grain: training record and pair. Inputs: incoming (Arrow: key), older_statistics.
INSERT INTO statistics BY NAME
SELECT o.*
FROM older_statistics AS o
JOIN incoming AS i ON i.run = o.run AND i.step = o.step AND i.segment_id = o.segment_id AND i.row = o.row
