-- Where each run stands, for the controller: the step that its newest records are of (after a return to a checkpoint that is not the
-- highest), when they were made, and two marks of change: `revision` grows whenever a step was recomputed. Grain: run.
-- Inputs: step_summaries, diagnoses. Parameters: none.
SELECT s.run, arg_max(s.step, (coalesce(s.time, TIMESTAMPTZ '-infinity'), s.step)) AS step, max(s.time) AS time,
       max(s.revision) AS revision, any_value(d.diagnosed_at) AS diagnosed_at
FROM step_summaries AS s
LEFT JOIN diagnoses AS d ON d.run = s.run
GROUP BY s.run
ORDER BY s.run
