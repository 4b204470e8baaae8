-- The delivery of $channel to be tried next. Grain: one row or none. Inputs: deliveries, notifications; $now.
-- Within an episode in the order of its transitions; among episodes the one first that has waited longest, so that a message which
-- fails for its content does not hold up the others. `thread` is the receipt of the episode's first message in the channel.
WITH mine AS (
    SELECT d.*, n.run, n.episode, n.number, n.document, n.enqueued_at
    FROM deliveries AS d
    JOIN notifications AS n ON n.key = d.key
    WHERE d.channel = $channel
),
heads AS (
    SELECT run, episode, min(number) AS number FROM mine WHERE status = 'waiting' GROUP BY run, episode
)
SELECT
    m.key, m.attempts, m.uncertain_since, m.document, m.enqueued_at,
    (
        SELECT arg_min(s.receipt, s.number)
        FROM mine AS s
        WHERE s.run = m.run AND s.episode = m.episode AND s.status = 'sent'
    ) AS thread
FROM mine AS m
JOIN heads AS h ON h.run = m.run AND h.episode = m.episode AND h.number = m.number
WHERE m.next_at <= $now
ORDER BY m.next_at, m.number
LIMIT 1
