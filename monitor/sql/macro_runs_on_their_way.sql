-- Steps of the runs `of_runs` (a list) whose engine records may still be on their way at time `looked_at`. Both sides flush when they like, and the
-- trainer's records may be here first. In a run whose engine sends any, a step waits while some of its sequences have no r, until a
-- step that came three later has its records, or for two minutes since it was computed; then they are missing for good. It also waits,
-- for a quarter of an hour at most, while the join has not yet looked for them: after a backlog of hours it works for minutes.
-- Grain: run and step. Inputs: step_summaries, dirty_steps, join_queue, training_sequences, segments.
WITH queued AS (
    SELECT DISTINCT t.run, t.step
    FROM join_queue AS q JOIN training_sequences AS t ON t.run = q.run AND t.sample_id = q.sample_id
    WHERE list_contains(of_runs, q.run) AND t.rollout_source = 'missing' AND t.rollout_segment IS NULL
), young AS (
    SELECT run, step FROM step_summaries WHERE list_contains(of_runs, run) AND computed_at > looked_at - INTERVAL 2 MINUTES
    UNION SELECT run, step FROM dirty_steps WHERE list_contains(of_runs, run)
), waiting AS (
    SELECT run, step FROM young
    UNION SELECT q.run, q.step
    FROM queued AS q LEFT JOIN step_summaries AS s ON s.run = q.run AND s.step = q.step
    WHERE coalesce(s.computed_at > looked_at - INTERVAL 15 MINUTES, true)
), begun AS (
    SELECT run, min(step) AS step FROM waiting GROUP BY run
), joined AS (
    SELECT t.run, t.step, bool_or(rollout_segment IS NOT NULL) AS any_joined,
           bool_or(rollout_source = 'missing' AND rollout_segment IS NULL) AS any_missing
    FROM training_sequences AS t JOIN begun AS b ON b.run = t.run AND t.step >= b.step
    GROUP BY t.run, t.step
), seen AS (
    SELECT run, max(step) AS step FROM joined WHERE any_joined GROUP BY run
)
SELECT j.run, j.step
FROM joined AS j
SEMI JOIN waiting AS w ON w.run = j.run AND w.step = j.step
LEFT JOIN queued AS q ON q.run = j.run AND q.step = j.step
LEFT JOIN seen AS n ON n.run = j.run
WHERE any_missing AND (q.step IS NOT NULL OR j.step > coalesce(n.step - 3, j.step - 1))
  AND j.run IN (SELECT run FROM segments WHERE kind = 'rollout')
