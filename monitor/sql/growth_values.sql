-- K3 of the steps of $runs, each between its numbers in $first and $last. Grain: run and step; the value is null where K3 was not measured.
-- Inputs: step_summaries, step_metrics.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
),
measured AS (
    SELECT m.run, m.step, m.value
    FROM step_metrics AS m JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
    WHERE m.metric = 'backend.k3_kl'
)
SELECT s.run, s.step, m.value
FROM step_summaries AS s
JOIN asked AS a ON a.run = s.run AND s.step BETWEEN a.first AND a.last
LEFT JOIN measured AS m ON m.run = s.run AND m.step = s.step
ORDER BY s.run, s.step
