-- What happened. Grain: event. Input: events.
SELECT time, kind, event, severity, source, message
FROM events
WHERE run = $run
ORDER BY time DESC
LIMIT 100
