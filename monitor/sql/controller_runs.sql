-- Where each run stands, for the controller: the step that its newest records are of (after a return to a checkpoint that is not the
-- highest), when they were made, and two marks of change: `revision` grows whenever a step was recomputed. `live`: see live_runs.
-- Grain: run. Inputs: step_summaries, diagnoses, live_runs. Parameters: none.
SELECT s.run, arg_max(s.step, (coalesce(s.time, TIMESTAMPTZ '-infinity'), s.step)) AS step, max(s.time) AS time,
       max(s.revision) AS revision, any_value(d.diagnosed_at) AS diagnosed_at, any_value(l.live) AS live
FROM step_summaries AS s
JOIN live_runs(now()) AS l ON l.run = s.run
LEFT JOIN diagnoses AS d ON d.run = s.run
GROUP BY s.run
ORDER BY s.run
