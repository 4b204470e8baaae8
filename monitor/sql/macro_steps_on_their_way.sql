-- Steps of `of_run` whose engine records may still be on their way at time `looked_at`. Both sides flush when they like, and the
-- trainer's records may be here first. In a run whose engine sends any, a step waits while some of its sequences have no r, until a
-- step that came three later has its records, or for two minutes since it was computed; then they are missing for good. It also waits,
-- for a quarter of an hour at most, while the join has not yet looked for them: after a backlog of hours it works for minutes.
-- Grain: step. Inputs: step_summaries, dirty_steps, join_queue, training_sequences, segments.
WITH queued AS (
    SELECT DISTINCT t.step
    FROM join_queue AS q JOIN training_sequences AS t ON t.run = q.run AND t.sample_id = q.sample_id
    WHERE q.run = of_run AND t.rollout_source = 'missing' AND t.rollout_segment IS NULL
), young AS (
    SELECT step FROM step_summaries WHERE run = of_run AND computed_at > looked_at - INTERVAL 2 MINUTES
    UNION SELECT step FROM dirty_steps WHERE run = of_run
), waiting AS (
    SELECT step FROM young
    UNION SELECT q.step
    FROM queued AS q LEFT JOIN step_summaries AS s ON s.run = of_run AND s.step = q.step
    WHERE coalesce(s.computed_at > looked_at - INTERVAL 15 MINUTES, true)
), joined AS (
    SELECT step, bool_or(rollout_segment IS NOT NULL) AS any_joined,
           bool_or(rollout_source = 'missing' AND rollout_segment IS NULL) AS any_missing
    FROM training_sequences
    WHERE run = of_run AND step >= (SELECT min(step) FROM waiting)
    GROUP BY step
)
SELECT step
FROM joined
WHERE any_missing AND step IN (SELECT step FROM waiting)
  AND (step IN (SELECT step FROM queued) OR step > coalesce((SELECT max(step) FROM joined WHERE any_joined) - 3, step - 1))
  AND EXISTS (SELECT 1 FROM segments WHERE run = of_run AND kind = 'rollout')
