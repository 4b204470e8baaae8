-- Step records that count again. Inputs: incoming (Arrow: key).
DELETE FROM older_step_records WHERE (run, step) IN (SELECT (run, step) FROM incoming)
