-- The delivery of $channel to be tried next. Grain: one row or none. Inputs: deliveries, notifications; $now.
-- Within a thread (an incident, or an episode that belongs to none) in the order of the transitions; among threads the one first that has waited
-- longest, so that a message which fails for its content does not hold up the others. `thread` is the receipt of its first message in the channel;
-- `overtaken`: a later one of the thread has been sent before this one; `later`: some message of it has.
WITH waiting AS (
    SELECT d.key, d.attempts, d.next_at, d.uncertain_since, d.last_error, n.run, coalesce(n.incident, n.episode) AS of, n.number
    FROM deliveries AS d
    JOIN notifications AS n ON n.key = d.key
    WHERE d.channel = $channel AND d.status = 'waiting'
),
heads AS (
    SELECT min(number) AS number FROM waiting GROUP BY run, of
),
next AS (
    SELECT w.*
    FROM waiting AS w
    JOIN heads AS h ON h.number = w.number
    WHERE w.next_at <= $now
    ORDER BY w.next_at, w.number
    LIMIT 1
),
said AS (
    SELECT arg_min(d.receipt, n.number) AS thread, coalesce(max(n.number) > any_value(x.number), false) AS overtaken,
           count(*) > 0 AS later
    FROM next AS x
    JOIN notifications AS n ON n.run = x.run AND coalesce(n.incident, n.episode) = x.of
    JOIN deliveries AS d ON d.key = n.key
    WHERE d.channel = $channel AND d.status = 'sent'
)
SELECT x.key, x.attempts, x.uncertain_since, x.last_error, n.document, n.enqueued_at, said.thread, said.overtaken, said.later
FROM next AS x
JOIN notifications AS n ON n.key = x.key
CROSS JOIN said
