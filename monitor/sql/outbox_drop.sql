-- Takes a delivery that was given up off the list of those. Grain: one delivery.
UPDATE deliveries SET status = 'dropped', finished_at = $now
WHERE key = $key AND channel = $channel AND status = 'dead'
