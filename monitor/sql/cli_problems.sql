-- What the collectors of a run lost or complained about, worst first; and of those that ended while they closed, what was left.
-- Grain: component and event. Inputs: health_records. Parameters: $run.
SELECT component, event, severity, sum(count)::BIGINT AS times, sum(sequences)::BIGINT AS sequences_lost,
       sum(tokens)::BIGINT AS tokens_lost, max(time) AS last_at, arg_max(message, time) AS message
FROM health_records
WHERE run = $run AND (severity <> 'info' OR event = 'closing'
                      AND writer NOT IN (SELECT writer FROM health_records WHERE run = $run AND event = 'closed'))
GROUP BY component, event, severity
ORDER BY severity, tokens_lost DESC, event
