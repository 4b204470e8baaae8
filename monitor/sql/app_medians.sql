-- What is usual for a run so far: medians over all steps but the newest one that has a value.
-- Grain: metric. Inputs: step_metrics. Parameters: $run, $metrics (list).
WITH known AS (
    SELECT metric, step, value, row_number() OVER (PARTITION BY metric ORDER BY step DESC) AS age
    FROM step_metrics
    WHERE run = $run AND list_contains($metrics, metric) AND value IS NOT NULL
)
SELECT metric, count(*) AS steps, median(value) AS median
FROM known WHERE age > 1 GROUP BY metric
