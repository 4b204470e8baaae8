-- Step records of attempts whose sequences were set aside. Inputs: incoming (Arrow: run, step), older_sequences.
DELETE FROM step_records AS r USING older_sequences AS o, incoming AS i
WHERE i.run = r.run AND i.step = r.step AND o.run = r.run AND o.step = r.step AND o.rank IS NOT DISTINCT FROM r.rank AND r.time < o.began
