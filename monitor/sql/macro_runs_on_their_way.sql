-- Steps of the runs `of_runs` (a list) whose engine records may still be on their way at time `looked_at`. Both sides flush when they like, and the
-- trainer's records may be here first. In a run whose engine sends any, a step waits while some of its sequences have no r, until a
-- step that came three later has its records, or for two minutes since it was computed; then they are missing for good.
-- Grain: run and step. Inputs: step_summaries, training_sequences, segments.
WITH waiting AS (
    SELECT run, step FROM step_summaries WHERE list_contains(of_runs, run) AND computed_at > looked_at - INTERVAL 2 MINUTES
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
LEFT JOIN seen AS n ON n.run = j.run
WHERE any_missing AND j.step > coalesce(n.step - 3, j.step - 1)
  AND j.run IN (SELECT run FROM segments WHERE kind = 'rollout')
