-- The newest self-test of every collector that made one.
-- Grain: run and writer. Inputs: health_records. Parameters: none.
SELECT run, writer, arg_max(component, time) AS component, max(time) AS time, arg_max(severity, time) AS severity,
       arg_max(message, time) AS message
FROM health_records
WHERE event = 'self_test'
GROUP BY run, writer
ORDER BY run, time
