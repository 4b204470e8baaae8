-- Step records of attempts whose sequences were set aside: of the same rank, from before the newest began. Grain: step record.
-- Inputs: incoming (Arrow: run, step), step_records, older_sequences.
INSERT INTO older_step_records BY NAME
SELECT r.*
FROM step_records AS r
JOIN incoming AS i ON i.run = r.run AND i.step = r.step
SEMI JOIN older_sequences AS o ON o.run = r.run AND o.step = r.step AND o.rank IS NOT DISTINCT FROM r.rank AND r.time < o.began
