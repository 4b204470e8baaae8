-- Statistics of sequences that were set aside; the join may write some after that. Grain: training record and pair.
-- Inputs: incoming (Arrow: run, step), statistics, older_sequences.
INSERT INTO older_statistics BY NAME
SELECT s.*
FROM statistics AS s
JOIN incoming AS i ON i.run = s.run AND i.step = s.step
SEMI JOIN older_sequences AS o ON o.run = s.run AND o.step = s.step AND o.segment_id = s.segment_id AND o.row = s.row
