-- Forgets who took care of alerts of $run. An episode's name begins with that of its run, which may hold a slash; of two runs whose names
-- fit, the longer is meant. To be run before the states are forgotten. Inputs: alert_states.
DELETE FROM alert_acknowledgements
WHERE starts_with(alert_acknowledgements.episode, $run || '/') AND NOT EXISTS (
    SELECT 1 FROM alert_states
    WHERE starts_with(alert_acknowledgements.episode, run || '/') AND starts_with(run, $run || '/')
)
