-- The smallest coverage of the steps of $run from $first to $last, but for those whose engine records may still be on their way: some
-- are missing, and no step that came three later has its own. Grain: one row. Inputs: step_metrics, training_sequences, segments.
WITH joined AS (
    SELECT step, bool_or(rollout_segment IS NOT NULL) AS any_joined,
           bool_or(rollout_source = 'missing' AND rollout_segment IS NULL) AS any_missing
    FROM training_sequences
    WHERE run = $run AND step BETWEEN $first AND $last
    GROUP BY step
), waiting AS (
    SELECT step FROM joined
    WHERE any_missing AND step > coalesce((SELECT max(step) FROM joined WHERE any_joined) - 3, step - 1)
      AND EXISTS (SELECT 1 FROM segments WHERE run = $run AND kind = 'rollout')
)
SELECT min(value) AS coverage
FROM step_metrics
WHERE run = $run AND metric = 'backend.coverage' AND step BETWEEN $first AND $last AND step NOT IN (SELECT step FROM waiting)
