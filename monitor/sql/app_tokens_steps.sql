-- Steps of $run as places to look for tokens. Grain: step. Inputs: step_summaries, step_metrics, training_sequences, sampled_sequences. Parameters: $run,
-- $pair. `k3_kl`, `broken` (tokens) of the pair, null where not measured; `kept`: sequences whose raw tokens are still there.
WITH measured AS (
    SELECT step, any_value(value) FILTER (metric = $pair || '.k3_kl') AS k3_kl,
           sum(value) FILTER (metric <> $pair || '.k3_kl')::BIGINT AS broken
    FROM step_metrics
    WHERE run = $run AND metric IN ($pair || '.k3_kl', $pair || '.nonfinite_tokens', $pair || '.impossible_tokens')
    GROUP BY step
),
kept AS (
    SELECT step, count(*) FILTER (raw_kept) AS kept
    FROM (SELECT run, step, raw_kept FROM training_sequences UNION ALL SELECT run, step, raw_kept FROM sampled_sequences)
    WHERE run = $run GROUP BY step
)
SELECT s.step, s.sequences, m.k3_kl, m.broken, coalesce(k.kept, 0) AS kept
FROM step_summaries AS s LEFT JOIN measured AS m USING (step) LEFT JOIN kept AS k USING (step)
WHERE s.run = $run
ORDER BY s.step
