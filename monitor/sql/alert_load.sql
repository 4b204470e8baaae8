-- The alerts of $run as they were kept. Grain: rule and slice. Inputs: alert_states.
SELECT rule, slice, fingerprint, document FROM alert_states WHERE run = $run
