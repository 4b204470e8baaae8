-- Keeps alerts. Grain: run, rule and slice. Inputs: incoming.
INSERT OR REPLACE INTO alert_states BY NAME SELECT * FROM incoming
