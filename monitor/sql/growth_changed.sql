-- Which of $runs had a step between its numbers in $first and $last computed again with another K3 (beyond rounding), or for the first
-- time. Grain: run. Inputs: step_summaries, step_growth, step_metrics.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
)
SELECT DISTINCT a.run
FROM asked AS a
JOIN step_summaries AS s ON s.run = a.run AND s.step BETWEEN a.first AND a.last
LEFT JOIN step_growth AS j ON j.run = s.run AND j.step = s.step
LEFT JOIN step_metrics AS m ON m.run = s.run AND m.step = s.step AND m.metric = 'backend.k3_kl'
WHERE j.step IS NULL OR (j.value IS NULL) <> (m.value IS NULL) OR abs(j.value - m.value) > 1e-9 * abs(m.value)
