-- Where the rollout log-probs of one step's sequences come from, and how the records fit. Grain: source and alignment.
-- Inputs: training_sequences, segments; of a folded step (`folded`) folded_joins and sampled_sequences,
-- without the alignment. Parameters: $run, $step. `kept`: sequences whose raw tokens are still there; `reduced`: that
-- were recorded as statistics only, and never had any here.
SELECT t.rollout_source, t.alignment, count(*) AS sequences, count(*) FILTER (t.raw_kept) AS kept,
       count(*) FILTER (g.kind = 'statistics') AS reduced, false AS folded
FROM training_sequences AS t LEFT JOIN segments AS g USING (segment_id)
WHERE t.run = $run AND t.step = $step
GROUP BY t.rollout_source, t.alignment
UNION ALL
SELECT j.rollout_source, NULL, sum(j.sequences)::BIGINT,
       (SELECT count(*) FILTER (raw_kept) FROM sampled_sequences AS s
        WHERE s.run = $run AND s.step = $step AND s.rollout_source = j.rollout_source),
       0, true
FROM folded_joins AS j
WHERE j.run = $run AND j.step = $step
GROUP BY j.rollout_source
ORDER BY sequences DESC, rollout_source, alignment
