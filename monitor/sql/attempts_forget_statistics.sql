-- Statistics of sequences that were set aside. Inputs: incoming (Arrow: run, step), older_sequences.
DELETE FROM statistics AS s USING older_sequences AS o, incoming AS i
WHERE i.run = s.run AND i.step = s.step AND o.run = s.run AND o.step = s.step AND o.segment_id = s.segment_id AND o.row = s.row
