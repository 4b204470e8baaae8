-- The collectors of a run: who they are, and their last heartbeat.
-- Grain: writer. Inputs: segments, health_records. Parameters: $run.
WITH signs AS (
    SELECT writer, arg_min(component, time) AS component, max(time) AS last_sign, bool_or(event = 'closed') AS closed,
           max_by(message, time) FILTER (event = 'self_test') AS self_test
    FROM health_records WHERE run = $run GROUP BY writer
), arrivals AS (
    SELECT writer, count(*) AS segments, sum(tokens)::BIGINT AS tokens, max(ingested_at) AS last_segment
    FROM segments WHERE run = $run GROUP BY writer
)
SELECT writer, component, coalesce(closed, false) AS closed, last_sign, last_segment, segments, tokens, self_test
FROM arrivals FULL JOIN signs USING (writer)
ORDER BY writer
