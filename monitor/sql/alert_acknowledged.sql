-- Who takes care of what in $runs (a list). Grain: episode. Inputs: alert_acknowledgements, alert_states.
SELECT episode, author, reason, time, until
FROM alert_acknowledgements
WHERE episode IN (SELECT episode FROM alert_states WHERE list_contains($runs::VARCHAR[], run))
