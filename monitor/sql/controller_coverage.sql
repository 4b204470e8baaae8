-- The smallest coverage of the steps of $run from $first to $last, but for those whose engine records may still be on their way.
-- Grain: one row. Inputs: step_metrics, steps_on_their_way.
SELECT min(value) AS coverage
FROM step_metrics
WHERE run = $run AND metric = 'backend.coverage' AND step BETWEEN $first AND $last
  AND step NOT IN (SELECT step FROM steps_on_their_way($run, now()))
