-- Steps of `of_run` whose engine records may still be on their way at time `looked_at`. Both sides flush when they like, and the
-- trainer's records may be here first. In a run whose engine sends any, a step waits while some of its sequences have no r, until a
-- step that came three later has its records, or for two minutes since it was computed; then they are missing for good.
-- Grain: step. Inputs: step_summaries, dirty_steps, training_sequences, segments.
WITH young AS (
    SELECT step FROM step_summaries WHERE run = of_run AND computed_at > looked_at - INTERVAL 2 MINUTES
    UNION SELECT step FROM dirty_steps WHERE run = of_run
), joined AS (
    SELECT step, bool_or(rollout_segment IS NOT NULL) AS any_joined,
           bool_or(rollout_source = 'missing' AND rollout_segment IS NULL) AS any_missing
    FROM training_sequences
    WHERE run = of_run AND step >= (SELECT min(step) FROM young)
    GROUP BY step
)
SELECT step
FROM joined
WHERE any_missing AND step IN (SELECT step FROM young)
  AND step > coalesce((SELECT max(step) FROM joined WHERE any_joined) - 3, step - 1)
  AND EXISTS (SELECT 1 FROM segments WHERE run = of_run AND kind = 'rollout')
