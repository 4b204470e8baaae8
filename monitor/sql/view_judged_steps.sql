-- How far each run is judged. Growth is judged at every step: what it finds worse than the diagnosis is the judgement at once (`grown`, the verdict,
-- since `grown_step`), what it finds no longer to grow, or to compare, once the diagnosis knows it. So `judged_step` is the newest step that growth was judged at, unless
-- the diagnosis does not know that: then the diagnosis's own step; null: not judged yet. `steps_behind`: steps after it;
-- `unjudged_at`: when the first of these was recorded, or, where another clock dated it (see dated_ahead), computed.
-- What was diagnosed of an older attempt, beyond the newest step of the newest one, judges nothing.
-- Grain: run. Inputs: step_summaries, abandoned_steps, diagnoses, growth_now.
WITH computed AS (
    SELECT run, max(step) AS step, max(computed_at) AS computed_at FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run
), news AS (
    SELECT d.run, d.step AS diagnosed_step, greatest(g.step, d.step) AS newest, g.verdict, g.changed_step, coalesce(d.step < g.changed_step, false) AS is_new,
           coalesce(d.verdict = 'no_data' AND g.verdict <> 'no_data', false) AS has_come,
           coalesce(list_position(['growing', 'critical'], g.verdict), 0) AS now, coalesce(list_position(['growing', 'critical'], d.verdict), 0) AS before
    FROM diagnoses AS d JOIN computed AS c ON c.run = d.run AND c.step >= d.step LEFT JOIN growth_now AS g ON g.run = d.run
), judged AS (
    SELECT run, diagnosed_step, if((is_new AND now < before) OR has_come, diagnosed_step, newest) AS judged_step,
           if(is_new AND now > before, verdict, NULL) AS grown, if(is_new AND now > before, changed_step, NULL) AS grown_step
    FROM news
), newest AS (
    SELECT run, step AS newest_step FROM computed
), behind AS (  -- nearly all steps are judged: only the others are counted one by one
    SELECT s.run, s.step, if(epoch(s.computed_at - s.time) > 900, s.computed_at, least(s.time, s.computed_at)) AS since
    FROM step_summaries AS s ANTI JOIN abandoned_steps USING (run, step) LEFT JOIN judged AS j ON j.run = s.run WHERE j.judged_step IS NULL OR s.step > j.judged_step
), late AS (
    SELECT run, count(DISTINCT step) AS behind, min(since) AS unjudged_at FROM behind GROUP BY run
)
SELECT n.run, n.newest_step, coalesce(l.behind, 0) AS steps_behind, l.unjudged_at, j.* EXCLUDE (run)
FROM newest AS n LEFT JOIN late AS l ON l.run = n.run LEFT JOIN judged AS j ON j.run = n.run
