-- K3 of the pair "update" (how far the optimizer moved within the step), steps $first to $last of $run (both included; null: no
-- bound). Grain: step, of those that recorded current log-probs. Inputs: statistics, folded_pairs.
SELECT step, sum(sum_k3) / sum(n) AS k3
FROM (
    SELECT run, step, pair, n, sum_k3 FROM statistics
    UNION ALL SELECT run, step, pair, n, sum_k3 FROM folded_pairs
)
WHERE run = $run AND pair = 'update' AND n > 0
    AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
GROUP BY step
ORDER BY step
