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

-- outbox_progress: Notes how a delivery goes. Grain: one delivery. `$begun`: attempts that begin: from here on the message may have arrived, whatever
-- happens. `$uncertain`: whether it may have. `$status`: waiting, until it was sent or given up.
UPDATE deliveries
SET status = $status, attempts = attempts + $begun, next_at = coalesce($next_at, next_at), last_error = $error, receipt = $receipt,
    uncertain_since = CASE WHEN $uncertain THEN coalesce(uncertain_since, $now) END, finished_at = CASE WHEN $status <> 'waiting' THEN $now END
WHERE key = $key AND channel = $channel

-- outbox_route: Makes deliveries. Grain: one row per notification and channel. Inputs: incoming(run, key, channel); $now.
INSERT INTO deliveries (run, key, channel, next_at)
SELECT run, key, channel, $now FROM incoming
ON CONFLICT DO NOTHING

-- outbox_routed: Marks notifications as routed. Grain: one row per key in $keys.
UPDATE notifications SET routed_at = $now WHERE key IN (SELECT unnest($keys))

-- outbox_unrouted: Notifications of which no deliveries were made yet, oldest first. Grain: one row per notification, at most $limit.
SELECT key, severity, document FROM notifications WHERE routed_at IS NULL ORDER BY number LIMIT $limit
