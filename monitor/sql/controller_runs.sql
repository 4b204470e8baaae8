-- Where each run stands, for the controller: newest step with metrics, and a number that grows whenever a step was computed anew.
-- Grain: run. Inputs: step_summaries, controllers. Parameters: none.
SELECT run, max(step) AS step, max(revision) AS revision, any_value(updated_at) AS controlled_at
FROM step_summaries LEFT JOIN controllers USING (run)
GROUP BY run
ORDER BY run
