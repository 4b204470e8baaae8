-- The smallest coverage of the steps of $run from $first to $last. Grain: one row. Inputs: step_metrics.
SELECT min(value) AS coverage
FROM step_metrics
WHERE run = $run AND metric = 'backend.coverage' AND step BETWEEN $first AND $last
