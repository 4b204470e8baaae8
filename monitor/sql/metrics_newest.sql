-- Metrics of the newest computed step of some runs. Grain: run and metric. Inputs: step_metrics, step_summaries.
-- Parameters: $runs, $keys.
SELECT run, metric, value
FROM step_metrics JOIN (SELECT run, max(step) AS step FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run) USING (run, step)
WHERE value IS NOT NULL AND run IN (SELECT unnest($runs::VARCHAR[])) AND metric IN (SELECT unnest($keys::VARCHAR[]))
ORDER BY run, metric
