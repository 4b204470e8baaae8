-- Puts one notification into the outbox; one that is there already stays as it is. Grain: one row. Inputs: its parts.
INSERT INTO notifications (key, run, rule, episode, state, severity, step, time, document)
VALUES ($key, $run, $rule, $episode, $state, $severity, $step, $time, $document)
ON CONFLICT DO NOTHING
