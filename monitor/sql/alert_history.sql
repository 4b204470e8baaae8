-- The transitions of $run (null: of all runs), by the time of their step. Grain: transition. Inputs: alert_transitions.
SELECT run, rule, slice, severity, step, time, before, after, reason, value, words
FROM alert_transitions
WHERE run = coalesce($run, run)
ORDER BY time, run, rule, slice, number
