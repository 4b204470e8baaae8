-- Who takes care of what in $run. Grain: episode. Inputs: alert_acknowledgements, alert_states.
SELECT episode, author, reason, time, until
FROM alert_acknowledgements
WHERE episode IN (SELECT episode FROM alert_states WHERE run = $run)
