-- How far each run is judged: `judged_step` is the newest step that its diagnosis has seen; null: not judged yet. `steps_behind`: steps after it;
-- `unjudged_at`: when the first of these was recorded, or, where another clock dated it (see dated_ahead), computed.
-- What was diagnosed of an older attempt, beyond the newest step of the newest one, judges nothing.
-- Grain: run. Inputs: step_summaries, abandoned_steps, diagnoses.
WITH newest AS (
    SELECT run, max(step) AS newest_step FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run
), judged AS (
    SELECT run, d.step AS judged_step FROM diagnoses AS d JOIN newest USING (run) WHERE d.step <= newest_step
), behind AS (  -- nearly all steps are judged: only the others are counted one by one
    SELECT s.run, s.step, if(epoch(s.computed_at - s.time) > 900, s.computed_at, least(s.time, s.computed_at)) AS since
    FROM step_summaries AS s ANTI JOIN abandoned_steps USING (run, step) LEFT JOIN judged AS j ON j.run = s.run WHERE j.judged_step IS NULL OR s.step > j.judged_step
), late AS (
    SELECT run, count(DISTINCT step) AS behind, min(since) AS unjudged_at FROM behind GROUP BY run
)
SELECT n.run, n.newest_step, coalesce(l.behind, 0) AS steps_behind, l.unjudged_at, j.judged_step
FROM newest AS n LEFT JOIN late AS l ON l.run = n.run LEFT JOIN judged AS j ON j.run = n.run
