-- Notes that an attempt has failed, and when the next one is due. Grain: one delivery.
UPDATE deliveries
SET last_error = $error, next_at = $next_at, uncertain_since = CASE WHEN $uncertain THEN uncertain_since END
WHERE key = $key AND channel = $channel
