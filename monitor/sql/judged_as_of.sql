-- How far each run is judged: `judged_step` is the newest step that growth was judged at, as long as the diagnosis knows that verdict, else
-- the diagnosis's own step. Grain: run. Parameters: $run (null: all), $now (null: now). Null: not judged yet. `steps_behind`, `seconds_behind`: steps after it, and for
-- how long the first of them has been computed. `live`: see live_runs. `newest_step`: also of those still to be computed.
-- Inputs: live_runs, growth_now, diagnoses, dirty_steps, step_summaries.
WITH dirty AS (
    SELECT run, max(step) AS step FROM dirty_steps GROUP BY run
), judged AS (
    SELECT n.run, n.live, greatest(n.step, coalesce(w.step, n.step)) AS newest_step, d.step AS diagnosed_step,
           CASE WHEN d.step >= g.changed_step THEN greatest(g.step, d.step) ELSE d.step END AS judged_step
    FROM live_runs(coalesce($now::TIMESTAMPTZ, now())) AS n
    LEFT JOIN dirty AS w ON w.run = n.run
    LEFT JOIN growth_now AS g ON g.run = n.run
    LEFT JOIN diagnoses AS d ON d.run = n.run
    WHERE n.run = coalesce($run, n.run)
)
SELECT j.run, j.live, j.newest_step, j.judged_step, j.diagnosed_step, count(s.step) AS steps_behind,
       coalesce(greatest(epoch(coalesce($now::TIMESTAMPTZ, now()) - min(s.computed_at)), 0), 0) AS seconds_behind
FROM judged AS j
LEFT JOIN step_summaries AS s ON s.run = j.run AND (j.judged_step IS NULL OR s.step > j.judged_step)
GROUP BY ALL
ORDER BY j.run
