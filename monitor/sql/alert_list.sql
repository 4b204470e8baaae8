-- How the alerts of $run (null: of all runs) stand, those that fire first and the worst of them first. `acknowledged_by`: who takes
-- care now; `acknowledged_until`: of a snooze. Grain: run, rule and slice. Inputs: alert_states, alert_acknowledgements.
SELECT run, rule, slice, severity, phase, alert_states.reason, step, started_step, changed_at, value, words, told, muted,
       if(told, episode, NULL) AS episode, if(until IS NULL OR until > now(), author, NULL) AS acknowledged_by,
       if(until > now(), until, NULL) AS acknowledged_until
FROM alert_states LEFT JOIN alert_acknowledgements USING (episode)
WHERE run = coalesce($run, run)
ORDER BY phase NOT IN ('firing', 'recovering'), list_position(['critical', 'warning', 'info'], severity), run, rule, slice
