-- Names of the parts of trajectories that go. Inputs: incoming (Arrow: run, step), training_sequences.
DELETE FROM training_parts AS p USING training_sequences AS t, incoming AS i
WHERE t.run = i.run AND t.step = i.step AND p.run = t.run AND p.segment_id = t.segment_id AND p.row = t.row
