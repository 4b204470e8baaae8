-- Steps that an earlier attempt may have recorded before a trainer began. Grain: run and step. Inputs: incoming (Arrow): health records;
-- training_sequences.
INSERT INTO dirty_steps (run, step)
SELECT DISTINCT t.run, t.step
FROM training_sequences AS t
JOIN incoming AS i ON i.run = t.run AND i.event = 'training_begins' AND i.step <= t.step AND t.time < i.time
