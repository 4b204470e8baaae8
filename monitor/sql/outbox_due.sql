-- The delivery of $channel to be tried next. Grain: one row or none. Inputs: deliveries, notifications; $now.
-- Due later than $latest is none: the clock was set back since.
-- Within an episode in the order of the transitions, the end of an incident after all before it; among those the one first that has waited longest,
-- so that a message which fails for its content does not hold up the others. A thread is an incident, or an episode that belongs to none: `thread` is
-- the receipt of what was sent last of it in the channel, which names the thread's first message, or the one that replaced it; `overtaken`: a later one has been sent before this one, or the end of the incident, which
-- nothing overtakes.
WITH waiting AS (
    SELECT d.key, d.attempts, d.next_at, d.uncertain_since, d.last_error, n.run, n.state, coalesce(n.incident, n.episode) AS of, n.number,
           min(n.number) OVER (PARTITION BY n.run, n.episode) AS of_episode,
           min(n.number) OVER (PARTITION BY n.run, coalesce(n.incident, n.episode)) AS of_thread
    FROM deliveries AS d
    JOIN notifications AS n ON n.key = d.key
    WHERE d.channel = $channel AND d.status = 'waiting'
),
next AS (
    SELECT *
    FROM waiting
    WHERE number = CASE state WHEN 'closed' THEN of_thread ELSE of_episode END AND (next_at <= $now OR next_at > $latest)
    ORDER BY next_at, number
    LIMIT 1
),
said AS (
    SELECT arg_max(d.receipt, (d.finished_at, n.number)) AS thread,
           coalesce(any_value(x.state) <> 'closed' AND (max(n.number) > any_value(x.number) OR bool_or(n.state = 'closed')), false) AS overtaken
    FROM next AS x
    JOIN notifications AS n ON n.run = x.run AND coalesce(n.incident, n.episode) = x.of
    JOIN deliveries AS d ON d.key = n.key
    WHERE d.channel = $channel AND d.status = 'sent'
)
SELECT x.key, x.attempts, x.uncertain_since, x.last_error, n.document, n.enqueued_at, said.thread, said.overtaken
FROM next AS x
JOIN notifications AS n ON n.key = x.key
CROSS JOIN said
