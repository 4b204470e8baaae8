-- Runs with steps that were computed since the run was last diagnosed, the most recent ones first. `document`: of the diagnosis there
-- is; null: none yet. Grain: run. Inputs: step_summaries, diagnoses.
SELECT s.run, max(s.step) AS step, max(s.revision) AS revision, any_value(d.document) AS document
FROM step_summaries AS s
LEFT JOIN diagnoses AS d ON d.run = s.run
GROUP BY s.run
HAVING max(s.revision) > coalesce(any_value(d.revision), -1)
ORDER BY max(s.revision) DESC
