-- Says how far the rules have looked at runs. Grain: run. Inputs: incoming.
INSERT OR REPLACE INTO alert_cursors BY NAME SELECT run, step, rules FROM incoming
