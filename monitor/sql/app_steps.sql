-- Steps of a run that were computed after revision $since.
-- Grain: step. Inputs: step_summaries. Parameters: $run, $since.
SELECT step, tokens, sequences, time, revision
FROM step_summaries
WHERE run = $run AND revision > $since
ORDER BY step
