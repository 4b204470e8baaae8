-- Known values of all metrics of a run, between two steps (both included; null: no bound).
-- Grain: step and metric. Inputs: step_metrics. Parameters: $run, $first, $last.
SELECT step, metric, value
FROM step_metrics
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step) AND value IS NOT NULL
ORDER BY step, metric
