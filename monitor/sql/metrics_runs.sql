-- Runs for a scrape, the newest first: those that had a collector at work in the last $hours hours; and what they lost.
-- Grain: run. Inputs: segments, health_records, step_summaries. Parameters: $hours.
WITH arrivals AS (
    SELECT run, writer, min(ingested_at) AS first_at, max(ingested_at) AS last_at FROM segments WHERE writer NOT LIKE 'shipper-%' GROUP BY run, writer
), signs AS (
    SELECT run, writer, bool_or(event = 'closed') AS closed FROM health_records GROUP BY run, writer
), live AS (
    SELECT run, min(first_at) AS first_at, max(last_at) AS last_at
    FROM arrivals LEFT JOIN signs USING (run, writer)
    GROUP BY run
    HAVING bool_or(NOT coalesce(closed, false)) AND max(last_at) > now() - to_hours($hours::INTEGER)
), losses AS (
    SELECT run, sum(sequences)::BIGINT AS sequences, sum(tokens)::BIGINT AS tokens FROM health_records GROUP BY run
), newest AS (
    SELECT run, max(step) AS step FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run
)
SELECT live.run, epoch(live.last_at) AS last_at, newest.step, coalesce(losses.sequences, 0) AS lost_sequences,
       coalesce(losses.tokens, 0) AS lost_tokens
FROM live LEFT JOIN newest USING (run) LEFT JOIN losses USING (run)
ORDER BY live.first_at DESC, live.run
