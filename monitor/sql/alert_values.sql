-- Values of the metrics $metrics in the steps $first to $last of $run. Grain: step and metric. Inputs: step_metrics.
SELECT step, metric, value
FROM step_metrics
WHERE run = $run AND step BETWEEN $first AND $last AND list_contains($metrics, metric) AND value IS NOT NULL
