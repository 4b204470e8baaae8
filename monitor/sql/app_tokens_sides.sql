-- Where the rollout log-probs of one step's sequences come from, and how the records fit. Grain: source and alignment.
-- Inputs: training_sequences. Parameters: $run, $step. `kept`: sequences whose raw tokens are still there.
SELECT rollout_source, alignment, count(*) AS sequences, count(*) FILTER (raw_kept) AS kept
FROM training_sequences
WHERE run = $run AND step = $step
GROUP BY rollout_source, alignment
ORDER BY sequences DESC, rollout_source, alignment
