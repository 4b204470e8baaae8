-- Ends a delivery: sent, or dead. Grain: one delivery.
UPDATE deliveries
SET status = $status, receipt = $receipt, last_error = $error, finished_at = $now, uncertain_since = NULL
WHERE key = $key AND channel = $channel
