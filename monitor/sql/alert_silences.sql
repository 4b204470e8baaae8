-- Silences that have not expired at $now, newest first. Grain: silence. Inputs: alert_silences.
SELECT id, matchers, author, reason, created_at, expires_at
FROM alert_silences
WHERE expires_at > $now::TIMESTAMPTZ
ORDER BY created_at DESC, id
