-- Where the rollout log-probs of one step's sequences come from, and how the records fit. Grain: source and alignment.
-- Inputs: training_sequences, segments. Parameters: $run, $step. `kept`: sequences whose raw tokens are still there; `reduced`: that
-- were recorded as statistics only, and never had any here.
SELECT t.rollout_source, t.alignment, count(*) AS sequences, count(*) FILTER (t.raw_kept) AS kept,
       count(*) FILTER (g.kind = 'statistics') AS reduced
FROM training_sequences AS t LEFT JOIN segments AS g USING (segment_id)
WHERE t.run = $run AND t.step = $step
GROUP BY t.rollout_source, t.alignment
ORDER BY sequences DESC, t.rollout_source, t.alignment
