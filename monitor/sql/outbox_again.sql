-- Lets a delivery that was given up be tried again; one with any other status stays as it is. Grain: one delivery.
-- `attempts` starts over: what is older than a day gets one more attempt, and is not given up before it.
UPDATE deliveries
SET status = 'waiting', attempts = 0, next_at = $now, finished_at = NULL
WHERE key = $key AND channel = $channel AND status = 'dead'
