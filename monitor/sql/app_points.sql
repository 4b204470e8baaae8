-- Values of chosen metrics at the steps that were computed after revision $since.
-- Grain: step and metric. Inputs: step_metrics, step_summaries. Parameters: $run, $since, $metrics (list).
SELECT points.step, points.metric, points.value
FROM step_metrics AS points JOIN step_summaries AS steps USING (run, step)
WHERE run = $run AND steps.revision > $since AND list_contains($metrics, points.metric) AND points.value IS NOT NULL
