-- heartbeats of $run, for the dead-man's rules. Grain: one row. Inputs: step_summaries, segments, health_records,
-- training_sequences, folded_joins, doubled. Times are of arrival where a clock of another machine could mislead.
-- `writers`: the run's collectors. `relies_on_engine`: trained steps whose sequences came without r as the trainer received it.
WITH arrivals AS (
    SELECT writer, min(ingested_at) AS first_seen, max(ingested_at) AS last_seen,
           bool_or(kind IN ('training', 'statistics', 'step')) AS trains,
           max(ingested_at) FILTER (kind IN ('training', 'statistics', 'step')) AS last_step_at,
           max(ingested_at) FILTER (kind IN ('training', 'statistics', 'step', 'rollout')) AS last_record_at,
           min(ingested_at) FILTER (kind IN ('training', 'statistics')) AS training_since,
           count(*) FILTER (kind = 'rollout') AS rollout_segments
    FROM segments WHERE run = $run AND writer NOT LIKE 'relay-%' AND writer NOT LIKE 'probe-%' GROUP BY writer
), signs AS (
    SELECT writer, arg_min(component, time) AS component, bool_or(event = 'closed') AS closed,
           max_by(message, time) FILTER (event = 'host_failed') AS failed
    FROM health_records WHERE run = $run GROUP BY writer
), collectors AS (
    SELECT max(last_step_at) AS last_step_at, max(last_record_at) AS last_record_at, min(training_since) AS training_since,
           coalesce(sum(rollout_segments), 0)::BIGINT AS rollout_segments,
           list({'name': writer, 'component': component, 'first_seen': first_seen, 'last_seen': last_seen,
                 'closed': coalesce(closed, false), 'failed': failed, 'trains': trains} ORDER BY writer) AS writers
    FROM arrivals LEFT JOIN signs USING (writer)
), paced AS (
    SELECT step, epoch(time - lag(time) OVER (ORDER BY step)) AS seconds FROM step_summaries WHERE run = $run
), pace AS (
    SELECT max(step) AS last_step, median(seconds) AS step_seconds FROM paced
), unreceived AS (
    SELECT count(DISTINCT step) AS relies_on_engine
    FROM (SELECT run, step, rollout_source FROM training_sequences UNION ALL SELECT run, step, rollout_source FROM folded_joins)
    WHERE run = $run AND rollout_source = 'missing'
), twice AS (
    SELECT coalesce(sum(sequences), 0)::BIGINT AS doubled, min(first_step) AS doubled_since FROM doubled WHERE run = $run
)
SELECT last_step, last_step_at, last_record_at, step_seconds, relies_on_engine, training_since, rollout_segments, writers,
       twice.doubled, doubled_since
FROM collectors, pace, unreceived, twice
