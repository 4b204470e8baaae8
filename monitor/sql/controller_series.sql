-- K3 of the pair `backend`, gradient norm and reward by step, of $run from $first to $last. Grain: step. Inputs: step_metrics, scalars.
SELECT step, k3, grad_norm, reward
FROM (
    SELECT step, max(value) FILTER (metric = 'backend.k3_kl') AS k3, max(value) FILTER (metric = 'reward') AS reward
    FROM step_metrics
    WHERE run = $run AND step BETWEEN $first AND $last AND metric IN ('backend.k3_kl', 'reward')
    GROUP BY step
)
LEFT JOIN (
    SELECT step, value AS grad_norm
    FROM scalars
    WHERE run = $run AND step BETWEEN $first AND $last AND name = 'grad_norm'
) USING (step)
ORDER BY step
