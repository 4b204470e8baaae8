-- The last $count measured values of $metric of $run up to step $last, oldest first, for a sparkline.
-- Grain: step. Inputs: step_metrics.
SELECT step, value FROM (
    SELECT step, value FROM step_metrics
    WHERE run = $run AND metric = $metric AND step <= $last AND value IS NOT NULL
    ORDER BY step DESC LIMIT $count
)
ORDER BY step
