-- Step records of the steps whose sequences count again. Grain: step record. Inputs: incoming (Arrow: key), older_step_records.
INSERT INTO step_records BY NAME SELECT * FROM older_step_records WHERE (run, step) IN (SELECT (run, step) FROM incoming)
