-- Notes that an attempt begins: from here on the message may have arrived, whatever happens. Grain: one delivery.
UPDATE deliveries
SET attempts = attempts + 1, uncertain_since = coalesce(uncertain_since, $now), next_at = $next_at
WHERE key = $key AND channel = $channel
