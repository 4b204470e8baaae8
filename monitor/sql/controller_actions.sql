-- The audit of a run's controller, oldest first. Grain: action. Inputs: controller_actions. Parameters: $run.
SELECT number, step, time, name, reason, words, severity, details
FROM controller_actions
WHERE run = $run
ORDER BY number
