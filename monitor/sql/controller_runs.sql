-- Where each run stands, for the controller: newest step with metrics, when its records were made, and two marks of change: `revision`
-- grows whenever a step was computed anew. Grain: run. Inputs: step_summaries, diagnoses. Parameters: none.
SELECT s.run, max(s.step) AS step, max(s.time) AS time, max(s.revision) AS revision, any_value(d.diagnosed_at) AS diagnosed_at
FROM step_summaries AS s
LEFT JOIN diagnoses AS d ON d.run = s.run
GROUP BY s.run
ORDER BY s.run
