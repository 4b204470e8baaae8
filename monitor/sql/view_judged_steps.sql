-- How far each run is judged. Growth is judged at every step: what it finds worse than the diagnosis is the judgement at once (`grown`, the verdict,
-- since `grown_step`), what it finds better once the diagnosis knows it. So `judged_step` is the newest step that growth was judged at, unless
-- the diagnosis does not know that it is better: then the diagnosis's own step; null: not judged yet. `steps_behind`: steps after it, computed or
-- still to be; `unjudged_at`: when the first of these was recorded, or, as long as it is not computed, when the run's last step was computed.
-- Grain: run. Inputs: step_summaries, dirty_steps, diagnoses, growth_now.
WITH news AS (
    SELECT d.run, d.step AS diagnosed_step, greatest(g.step, d.step) AS newest, g.verdict, g.changed_step, coalesce(d.step < g.changed_step, false) AS is_new,
           list_position(['growing', 'critical'], g.verdict) AS now, coalesce(list_position(['growing', 'critical'], d.verdict), 0) AS before
    FROM diagnoses AS d LEFT JOIN growth_now AS g USING (run)
), judged AS (
    SELECT run, diagnosed_step, if(is_new AND (now IS NULL OR now < before), diagnosed_step, newest) AS judged_step,
           if(is_new AND now > before, verdict, NULL) AS grown, if(is_new AND now > before, changed_step, NULL) AS grown_step
    FROM news
), arrived AS (
    SELECT run, step, least(time, computed_at) AS since FROM step_summaries
    UNION ALL
    SELECT d.run, d.step, max(s.computed_at)
    FROM (SELECT DISTINCT run, step FROM dirty_steps) AS d LEFT JOIN step_summaries AS s ON s.run = d.run
    GROUP BY d.run, d.step
), steps AS (
    SELECT a.run, max(a.step) AS newest_step, count(DISTINCT a.step) FILTER (j.judged_step IS NULL OR a.step > j.judged_step) AS steps_behind,
           min(a.since) FILTER (j.judged_step IS NULL OR a.step > j.judged_step) AS unjudged_at
    FROM arrived AS a LEFT JOIN judged AS j USING (run) GROUP BY a.run
)
FROM steps LEFT JOIN judged USING (run)
