-- Step metrics, long. Grain: one row per run, step and metric. Inputs: step_metrics, step_summaries.
SELECT m.run, m.step, m.metric, m.value, s.time, s.tokens, s.sequences, s.revision
FROM step_metrics AS m
LEFT JOIN step_summaries AS s USING (run, step)
