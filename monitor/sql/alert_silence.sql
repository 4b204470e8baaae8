-- Adds a silence; asked for again under the same id, nothing changes.
INSERT OR IGNORE INTO alert_silences (id, matchers, author, reason, created_at, expires_at)
VALUES ($id, $matchers, $author, $reason, $created_at, $expires_at)
