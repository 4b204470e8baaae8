-- outbox_begin: Notes that an attempt begins: from here on the message may have arrived, whatever happens. Grain: one delivery.
UPDATE deliveries
SET attempts = attempts + 1, uncertain_since = coalesce(uncertain_since, $now), next_at = $next_at
WHERE key = $key AND channel = $channel

-- outbox_channels: How the channels are doing. Grain: one row per channel that was ever used. Inputs: deliveries.
SELECT
    channel,
    count(*) FILTER (status = 'sent') AS sent,
    count(*) FILTER (status = 'waiting') AS waiting,
    count(*) FILTER (status = 'dead') AS dead,
    max(finished_at) FILTER (status = 'sent') AS last_sent_at,
    arg_max(last_error, next_at) FILTER (status = 'waiting') AS last_error,
    min(next_at) FILTER (status = 'waiting') AS next_at
FROM deliveries
GROUP BY channel
ORDER BY channel

-- outbox_dead_letters: Messages that were given up in the week before $now, newest first. Grain: one row per delivery. Inputs: deliveries, notifications.
SELECT d.key, d.channel, n.run, n.rule, n.episode, n.state, n.severity, n.step, n.time, d.attempts, d.last_error, d.finished_at
FROM deliveries AS d
JOIN notifications AS n ON n.key = d.key
WHERE d.status = 'dead' AND d.finished_at > $now::TIMESTAMPTZ - INTERVAL 7 DAYS
ORDER BY d.finished_at DESC, n.number DESC

-- outbox_enqueue: Puts one notification into the outbox; one that is there already stays as it is. Grain: one row. Inputs: its parts.
INSERT INTO notifications (key, run, rule, episode, state, severity, step, time, document, incident)
VALUES ($key, $run, $rule, $episode, $state, $severity, $step, $time, $document, $incident)
ON CONFLICT DO NOTHING

-- outbox_failed: Notes that an attempt has failed, and when the next one is due. Grain: one delivery.
UPDATE deliveries
SET last_error = $error, next_at = $next_at, uncertain_since = CASE WHEN $uncertain THEN uncertain_since END
WHERE key = $key AND channel = $channel

-- outbox_finish: Ends a delivery: sent, or dead. Grain: one delivery.
UPDATE deliveries
SET status = $status, receipt = $receipt, last_error = $error, finished_at = $now, uncertain_since = NULL
WHERE key = $key AND channel = $channel

-- outbox_route: Makes deliveries. Grain: one row per notification and channel. Inputs: incoming(key, channel); $now.
INSERT INTO deliveries (key, channel, next_at)
SELECT key, channel, $now FROM incoming
ON CONFLICT DO NOTHING

-- outbox_routed: Marks notifications as routed. Grain: one row per key in $keys.
UPDATE notifications SET routed_at = $now WHERE key IN (SELECT unnest($keys))

-- outbox_unrouted: Notifications of which no deliveries were made yet, oldest first. Grain: one row per notification, at most $limit.
SELECT key, severity, document FROM notifications WHERE routed_at IS NULL ORDER BY number LIMIT $limit
