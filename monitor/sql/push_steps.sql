-- The first computed steps of a run in a range, with the metrics known of them. Grain: step and metric; one row, metric null, of a step of which none is.
-- Inputs: step_summaries, step_metrics. Parameters: $run, $after (excluded), $up_to (included), $count (of steps).
WITH chosen AS (
    SELECT step, time FROM step_summaries WHERE run = $run AND step > $after AND step <= $up_to ORDER BY step LIMIT $count
)
SELECT c.step, c.time, m.metric, m.value
FROM chosen AS c
LEFT JOIN step_metrics AS m ON m.run = $run AND m.step = c.step AND m.step > $after AND m.step <= $up_to AND m.value IS NOT NULL
ORDER BY c.step
