-- Ends a delivery: sent, or dead; of a dead one it stays known that an attempt before the last may have arrived. Grain: one delivery.
UPDATE deliveries
SET status = $status, receipt = $receipt, last_error = $error, finished_at = $now, uncertain_since = $uncertain_since::TIMESTAMPTZ
WHERE key = $key AND channel = $channel
