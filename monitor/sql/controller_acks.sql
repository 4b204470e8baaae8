-- What the trainer said it applied, from step $first of $run on: one row per step, of the lowest rank that says anything.
-- Grain: step. Inputs: step_records. `correction` is JSON; null: the step's record names none.
SELECT step, arg_min(correction, coalesce(rank, 0)) FILTER (correction IS NOT NULL) AS correction
FROM step_records
WHERE run = $run AND step >= $first
GROUP BY step
ORDER BY step
