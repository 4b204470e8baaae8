-- Appends one action to the audit. Parameters: $run, $number, $step, $now, $name, $reason, $words, $severity, $details.
INSERT INTO controller_actions (run, number, step, time, name, reason, words, severity, details)
VALUES ($run, $number, $step, $now::TIMESTAMPTZ, $name, $reason, $words, $severity, $details)
