-- Messages that were given up, newest first. Grain: one row per delivery. Inputs: deliveries, notifications.
SELECT d.key, d.channel, n.run, n.rule, n.episode, n.state, n.severity, n.step, n.time, d.attempts, d.last_error, d.finished_at
FROM deliveries AS d
JOIN notifications AS n ON n.key = d.key
WHERE d.status = 'dead'
ORDER BY d.finished_at DESC, n.number DESC
