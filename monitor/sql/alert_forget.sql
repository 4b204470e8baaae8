-- Forgets the alerts of $run whose rule and slice, as "rule/slice", are in $names. Inputs: alert_states.
DELETE FROM alert_states WHERE run = $run AND list_contains($names, rule || '/' || slice)
