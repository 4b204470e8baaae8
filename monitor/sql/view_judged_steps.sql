-- How far each run is judged: `judged_step` is the newest step that growth was judged at, as long as the diagnosis knows that verdict, else
-- the diagnosis's own step; null: not judged yet. `steps_behind`: steps after it, computed or still to be; `unjudged_at`: when the first
-- of these was recorded, or, as long as it is not computed, when the run's last step was computed: it has waited since then at most.
-- Grain: run. Inputs: step_summaries, dirty_steps, diagnoses, growth_now.
WITH judged AS (
    SELECT d.run, d.step AS diagnosed_step, if(d.step >= g.changed_step, greatest(g.step, d.step), d.step) AS judged_step
    FROM diagnoses AS d LEFT JOIN growth_now AS g USING (run)
), arrived AS (
    SELECT run, step, least(time, computed_at) AS since FROM step_summaries
    UNION ALL
    SELECT d.run, d.step, max(s.computed_at)
    FROM (SELECT DISTINCT run, step FROM dirty_steps) AS d LEFT JOIN step_summaries AS s ON s.run = d.run
    GROUP BY d.run, d.step
), after AS (
    SELECT a.*, j.* EXCLUDE (run), j.judged_step IS NULL OR a.step > j.judged_step AS behind FROM arrived AS a LEFT JOIN judged AS j ON j.run = a.run
)
SELECT run, max(step) AS newest_step, any_value(judged_step) AS judged_step, any_value(diagnosed_step) AS diagnosed_step,
       count(DISTINCT step) FILTER (behind) AS steps_behind, min(since) FILTER (behind) AS unjudged_at
FROM after GROUP BY run
