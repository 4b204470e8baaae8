-- The delivery of $channel to be tried next. Grain: one row or none. Inputs: deliveries, notifications; $now.
-- Within an episode in the order of its transitions; among episodes the one first that has waited longest, so that a message which
-- fails for its content does not hold up the others. `thread` is the receipt of the episode's first message in the channel.
WITH mine AS (
    SELECT d.key, d.status, d.attempts, d.next_at, d.uncertain_since, d.last_error, d.receipt, n.run, n.episode, n.number
    FROM deliveries AS d
    JOIN notifications AS n ON n.key = d.key
    WHERE d.channel = $channel
),
heads AS (
    SELECT run, episode, min(number) AS number FROM mine WHERE status = 'waiting' GROUP BY run, episode
),
next AS (
    SELECT m.*
    FROM mine AS m
    JOIN heads AS h ON h.number = m.number
    WHERE m.next_at <= $now
    ORDER BY m.next_at, m.number
    LIMIT 1
)
SELECT
    x.key, x.attempts, x.uncertain_since, x.last_error, n.document, n.enqueued_at,
    (
        SELECT arg_min(s.receipt, s.number)
        FROM mine AS s
        WHERE s.run = x.run AND s.episode = x.episode AND s.status = 'sent'
    ) AS thread
FROM next AS x
JOIN notifications AS n ON n.key = x.key
