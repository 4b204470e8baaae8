-- The alerts of $runs (a list) as they were kept. Grain: run, rule and slice. Inputs: alert_states.
SELECT run, rule, slice, fingerprint, document FROM alert_states WHERE list_contains($runs::VARCHAR[], run)
