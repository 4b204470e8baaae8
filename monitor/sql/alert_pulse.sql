-- Signs of life of $run, for the dead-man's rules. Grain: one row. Inputs: step_summaries, segments, health_records,
-- training_sequences. Times are of arrival where a clock of another machine could mislead.
-- `writers`: the run's collectors. `relies_on_engine`: trained steps whose sequences came without r as the trainer received it.
WITH arrivals AS (
    SELECT writer, min(ingested_at) AS first_seen, max(ingested_at) AS last_seen,
           bool_or(kind IN ('training', 'statistics', 'step')) AS trains
    FROM segments WHERE run = $run GROUP BY writer
), signs AS (
    SELECT writer, arg_min(component, time) AS component, bool_or(event = 'closed') AS closed,
           max_by(message, time) FILTER (event = 'host_failed') AS failed
    FROM health_records WHERE run = $run GROUP BY writer
), paced AS (
    SELECT step, time, computed_at, epoch(time - lag(time) OVER (ORDER BY step)) AS seconds FROM step_summaries WHERE run = $run
)
SELECT (SELECT max(step) FROM paced) AS last_step,
       (SELECT max(ingested_at) FROM segments WHERE run = $run AND kind IN ('training', 'statistics', 'step')) AS last_step_at,
       (SELECT max(ingested_at) FROM segments
        WHERE run = $run AND kind IN ('training', 'statistics', 'step', 'rollout')) AS last_record_at,
       (SELECT median(seconds) FROM paced) AS step_seconds,
       (SELECT count(DISTINCT step) FROM training_sequences WHERE run = $run AND rollout_source = 'missing') AS relies_on_engine,
       (SELECT min(ingested_at) FROM segments WHERE run = $run AND kind IN ('training', 'statistics')) AS training_since,
       (SELECT count(*) FROM segments WHERE run = $run AND kind = 'rollout') AS rollout_segments,
       (SELECT list({'name': writer, 'component': component, 'first_seen': first_seen, 'last_seen': last_seen, 'closed': coalesce(closed, false),
                     'failed': failed, 'trains': trains} ORDER BY writer)
        FROM arrivals LEFT JOIN signs USING (writer)) AS writers
