-- The computed steps of a run, between two steps (both included; null: no bound).
-- Grain: step. Inputs: step_summaries. Parameters: $run, $first, $last.
SELECT step, tokens, sequences
FROM step_summaries
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
ORDER BY step
