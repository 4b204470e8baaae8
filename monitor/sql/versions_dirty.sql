-- Steps that trained on rollout records whose versions were corrected. Grain: run and step. Inputs: incoming (Arrow), training_sequences.
INSERT INTO dirty_steps (run, step)
SELECT DISTINCT s.run, s.step
FROM incoming AS i
JOIN training_sequences AS s ON s.run = i.run AND s.rollout_segment = i.segment_id AND s.rollout_row = i.row
