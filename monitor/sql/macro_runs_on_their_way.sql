-- Steps of the runs `of_runs` (a list) whose engine records may still be on their way at time `looked_at`. Both sides flush when they like, and the
-- trainer's records may be here first. In a run whose engine sends any, a step waits while some of its sequences have no r, until a
-- step that came three later has its records, or for two minutes since it was computed; then they are missing for good.
-- Grain: run and step. Inputs: step_summaries, segments.
WITH joined AS (
    SELECT run, max(step) AS step FROM step_summaries WHERE list_contains(of_runs, run) AND seen > 0 GROUP BY run
)
SELECT s.run, s.step
FROM step_summaries AS s
LEFT JOIN joined AS j ON j.run = s.run
WHERE list_contains(of_runs, s.run) AND s.computed_at > looked_at - INTERVAL 2 MINUTES
  AND s.unseen > 0 AND s.step > coalesce(j.step - 3, s.step - 1)
  AND s.run IN (SELECT run FROM segments WHERE kind = 'rollout')
