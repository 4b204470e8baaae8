-- What the trainer said it applied in one step. Grain: record of a rank or micro-batch that says so. Inputs: step_records.
SELECT rank, correction FROM step_records WHERE run = $run AND step = $step AND correction IS NOT NULL ORDER BY rank, time
