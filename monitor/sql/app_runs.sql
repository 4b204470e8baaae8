-- Runs a dashboard can show, newest first (of those that arrived together, the one whose first step is newer), with what is needed to judge whether they live.
-- Grain: run. Inputs: segments, step_summaries, rollout_sequences, health_records, diagnoses, notifications, controller_actions,
-- judgements, spooled.
-- Parameters: none.
-- `revision` grows whenever a step of the run was recomputed; `writers` are its collectors. `news` becomes another text whenever
-- the run is diagnosed, one of its alerts moves or its correction is acted upon; null: nothing of the kind has happened. `judgement`: how the run stands.
-- `spooled_at`: when the newest of the records was written that wait in the spool; null: none has waited for long.
-- A collector's clock may differ from ours: nothing it recorded is newer than its arrival here, what comes at the pace at which it is made is as new as that, and a
-- heartbeat is seen when it arrives. `dated_ahead`: by how many seconds the clock is ahead that dated the newest step, see live_runs.
WITH arrivals AS (
    SELECT run, writer, min(ingested_at) AS first_at, max(ingested_at) AS last_at,
           max(ingested_at) FILTER (kind IN ('training', 'statistics', 'rollout', 'step')) AS last_data_at,
           bool_or(kind IN ('training', 'statistics', 'step')) AS trains
    FROM segments WHERE writer NOT LIKE 'shipper-%' GROUP BY run, writer
), signs AS (
    SELECT run, writer, bool_or(event = 'closed') AS closed, max_by(message, time) FILTER (event = 'host_failed') AS failed
    FROM health_records GROUP BY run, writer
), writers AS (
    SELECT run, min(first_at) AS first_at, max(last_data_at) AS last_data_at,
           list({'name': writer, 'last_seen': arrivals.last_at, 'closed': coalesce(closed, false), 'failed': failed,
                 'trains': trains}) AS writers
    FROM arrivals LEFT JOIN signs USING (run, writer) GROUP BY run
), steps AS (
    SELECT run, count(*) AS steps, max(step) AS last_step, min(time) AS begun_at, max(time) AS last_at,
           sum(tokens)::BIGINT AS tokens, sum(sequences)::BIGINT AS sequences, max(revision) AS revision
    FROM step_summaries GROUP BY run
), recent AS (
    SELECT s.run, s.time, s.computed_at, epoch(s.time - lag(s.time) OVER (PARTITION BY s.run ORDER BY s.step)) AS seconds
    FROM step_summaries AS s JOIN steps AS n ON s.run = n.run AND s.step > n.last_step - 50
), paced AS (
    SELECT run, median(seconds) AS step_seconds, max(time) AS made, max(computed_at) AS came,
           coalesce(at_its_pace(max(time) - min(time), max(computed_at) - min(computed_at)), false) AS kept
    FROM recent GROUP BY run
), rollouts AS (
    SELECT run, max(time) AS last_at FROM rollout_sequences GROUP BY run
), happened AS (
    SELECT run, 'diagnosis ' || diagnosed_at AS what FROM diagnoses
    UNION ALL SELECT run, 'alerts ' || max(number) FROM notifications GROUP BY run
    UNION ALL SELECT run, 'actions ' || max(number) FROM controller_actions GROUP BY run
), news AS (
    SELECT run, string_agg(what, ', ' ORDER BY what) AS news FROM happened GROUP BY run
)
SELECT run, writers, coalesce(steps, 0) AS steps, last_step, step_seconds, tokens, sequences,
       coalesce(revision, 0) AS revision, news, judgements AS judgement, spooled.newest_at AS spooled_at,
       if(greatest(steps.last_at, rollouts.last_at) IS NULL, NULL,
          if(kept, last_data_at, least(greatest(steps.last_at, rollouts.last_at), last_data_at))) AS last_record_at,
       dated_ahead(made, came, kept) AS dated_ahead
FROM writers LEFT JOIN steps USING (run) LEFT JOIN paced USING (run) LEFT JOIN rollouts USING (run) LEFT JOIN news USING (run)
LEFT JOIN judgements USING (run) LEFT JOIN spooled USING (run)
ORDER BY first_at DESC, begun_at DESC NULLS FIRST, run
