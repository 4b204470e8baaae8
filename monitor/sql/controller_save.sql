-- Remembers the controller's state of a run. Parameters: $run, $control, $directives, $now.
INSERT OR REPLACE INTO controllers (run, control, directives, updated_at)
VALUES ($run, $control, $directives, $now::TIMESTAMPTZ)
