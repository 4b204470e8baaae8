-- Appends transitions; one that is known already is not written again. Inputs: incoming.
INSERT OR IGNORE INTO alert_transitions BY NAME SELECT * FROM incoming
