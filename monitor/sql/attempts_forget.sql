-- Rows that are in another table now. {table}: of sequences or of their statistics. Inputs: incoming (Arrow: key).
DELETE FROM {table} AS t USING incoming AS i
WHERE t.run = i.run AND t.step = i.step AND t.segment_id = i.segment_id AND t.row = i.row
