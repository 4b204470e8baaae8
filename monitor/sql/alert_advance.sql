-- Says how far the rules have looked at $run. Grain: run.
INSERT OR REPLACE INTO alert_cursors (run, step, rules) VALUES ($run, $step, $rules)
