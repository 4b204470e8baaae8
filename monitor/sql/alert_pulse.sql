-- heartbeats of $runs (a list), for the liveness test. Grain: run. Inputs: step_summaries, segments, health_records,
-- spooled. Times are of arrival where a clock of another machine could mislead.
-- `writers`: the run's collectors. `spooled_at`: when the newest record was written that waits in the spool. `relies_on_engine`: trained steps whose sequences came without r as the trainer received it.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run
), arrivals AS (
    SELECT run, writer, min(ingested_at) AS first_seen, max(ingested_at) AS last_seen,
           bool_or(kind IN ('training', 'statistics', 'step')) AS trains,
           max(ingested_at) FILTER (kind IN ('training', 'statistics', 'step')) AS last_step_at,
           max(ingested_at) FILTER (kind IN ('training', 'statistics', 'step', 'rollout')) AS last_record_at,
           min(ingested_at) FILTER (kind IN ('training', 'statistics')) AS training_since,
           count(*) FILTER (kind = 'rollout') AS rollout_segments
    FROM segments SEMI JOIN asked USING (run)
    WHERE writer NOT LIKE 'shipper-%'
    GROUP BY run, writer
), signs AS (
    SELECT run, writer, arg_min(component, time) AS component, bool_or(event = 'closed') AS closed,
           max_by(message, time) FILTER (event = 'host_failed') AS failed
    FROM health_records SEMI JOIN asked USING (run)
    GROUP BY run, writer
), collectors AS (
    SELECT run, max(last_step_at) AS last_step_at, max(last_record_at) AS last_record_at, min(training_since) AS training_since,
           sum(rollout_segments)::BIGINT AS rollout_segments,
           list({'name': writer, 'component': component, 'first_seen': first_seen, 'last_seen': last_seen,
                 'closed': coalesce(closed, false), 'failed': failed, 'trains': trains} ORDER BY writer) AS writers
    FROM arrivals LEFT JOIN signs USING (run, writer)
    GROUP BY run
), paced AS (
    SELECT run, step, epoch(time - lag(time) OVER (PARTITION BY run ORDER BY step)) AS seconds
    FROM step_summaries SEMI JOIN asked USING (run)
), pace AS (
    SELECT run, max(step) AS last_step, median(seconds) AS step_seconds FROM paced GROUP BY run
), unreceived AS (
    SELECT run, count(*) AS relies_on_engine FROM step_summaries SEMI JOIN asked USING (run) WHERE missing > 0 GROUP BY run
)
SELECT run, last_step, last_step_at, last_record_at, step_seconds, coalesce(relies_on_engine, 0) AS relies_on_engine, training_since,
       coalesce(rollout_segments, 0) AS rollout_segments, writers,
       spooled.newest_at AS spooled_at
FROM asked
LEFT JOIN collectors USING (run)
LEFT JOIN pace USING (run)
LEFT JOIN unreceived USING (run)
LEFT JOIN spooled USING (run)
