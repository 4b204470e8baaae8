-- Values of the metrics $metrics in steps of $runs, each between its numbers in $first and $last. Grain: run, step and metric. Inputs:
-- step_metrics.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
)
SELECT m.run, step, metric, value
FROM step_metrics AS m JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
WHERE list_contains($metrics, metric) AND value IS NOT NULL
