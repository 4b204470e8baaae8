-- cli_collectors: The collectors of a run: who they are, and their last heartbeat.
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

-- cli_ends: Collectors that ended without closing, and what that may have cost. Grain: run and writer. Inputs: health_records, segments,
-- training_sequences, spooled. Parameters: $run (null: all), $now, $silent (seconds without a heartbeat, and without a record in the
-- spool, after which a writer has ended).
-- `sequences`, `tokens`: what an engine had not written (tokens null: a request had no limit); null for others. `last_step`: the newest that
-- a trainer recorded; `absent_steps`: later steps of the run without any sequence of its rank; `flush_seconds`: what it wrote at once.
WITH signs AS (
    SELECT run, writer, arg_min(component, time) AS component, max(time) AS last_sign, bool_or(event = 'closed') AS closed,
           arg_max(details, time) FILTER (event = 'unwritten') AS said,
           arg_min(details, time) FILTER (event = 'started') AS began
    FROM health_records WHERE run = coalesce($run, run) GROUP BY run, writer
), arrived AS (  -- a heartbeat is seen when it arrives, whatever clock dated it
    SELECT run, writer, max(ingested_at) AS last_arrival FROM segments WHERE run = coalesce($run, run) GROUP BY run, writer
), ended AS (
    SELECT run, writer, component, last_sign, (said ->> '$.sequences')::BIGINT AS sequences, (said ->> '$.tokens')::BIGINT AS tokens,
           try_cast(began ->> '$.rank' AS INTEGER) AS rank, try_cast(began ->> '$.flush_interval' AS DOUBLE) AS flush_seconds
    FROM signs LEFT JOIN arrived USING (run, writer) LEFT JOIN spooled USING (run)
    WHERE NOT closed AND coalesce(said, began) IS NOT NULL
        AND epoch($now::TIMESTAMPTZ) - epoch(greatest(coalesce(last_arrival, last_sign), newest_at)) > $silent
), trained AS (
    SELECT ended.run, ended.writer, max(step) AS last_step
    FROM ended JOIN segments USING (run, writer) JOIN training_sequences USING (segment_id)
    GROUP BY ALL
), later AS (
    SELECT trained.run, trained.writer, t.step, bool_or(t.rank IS NOT DISTINCT FROM ended.rank) AS present
    FROM trained JOIN ended USING (run, writer) JOIN training_sequences AS t ON t.run = trained.run AND t.step > trained.last_step
    GROUP BY ALL
), absent AS (
    SELECT run, writer, count(*) FILTER (NOT present) AS absent_steps FROM later GROUP BY run, writer
)
SELECT run, writer, component, rank, last_sign, sequences, tokens, flush_seconds, last_step, coalesce(absent_steps, 0) AS absent_steps
FROM ended LEFT JOIN trained USING (run, writer) LEFT JOIN absent USING (run, writer)
ORDER BY run, last_sign, writer

-- cli_metrics: Known values of all metrics of a run, between two steps (both included; null: no bound).
-- Grain: step and metric. Inputs: step_metrics. Parameters: $run, $first, $last.
SELECT step, metric, value
FROM step_metrics
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step) AND value IS NOT NULL
ORDER BY step, metric

-- cli_name_clashes: Sample ids that do not name one sequence. Grain: run, for runs that have any. Inputs: training_sequences, rollout_sequences, segments.
-- Parameters: $run (null: all). `trained`: ids under which one step has sequences of different tokens; `engines`: ids that several writers
-- of rollout records used; `twice`: rollout records that repeat another one of their writer; `reused`: ids under which one writer recorded
-- rollouts of different tokens.
WITH trained AS (
    SELECT run, count(*) AS trained
    FROM (SELECT run FROM training_sequences WHERE run = coalesce($run, run)
          GROUP BY run, step, sample_id HAVING count(DISTINCT token_hash) > 1)
    GROUP BY run
), rollouts AS (
    SELECT r.run, r.sample_id, count(DISTINCT s.writer) AS writers, count(*) - count(DISTINCT (s.writer, r.token_hash, r.time)) AS repeats,
           count(DISTINCT (s.writer, r.token_hash)) > count(DISTINCT s.writer) AS reused
    FROM rollout_sequences AS r JOIN segments AS s USING (segment_id)
    WHERE r.run = coalesce($run, r.run) AND r.parts IS NULL
    GROUP BY r.run, r.sample_id
), engines AS (
    SELECT run, count(*) FILTER (writers > 1) AS engines, sum(repeats)::BIGINT AS twice,
           count(*) FILTER (reused) AS reused FROM rollouts GROUP BY run
)
SELECT run, coalesce(trained, 0) AS trained, coalesce(engines, 0) AS engines, coalesce(twice, 0) AS twice, coalesce(reused, 0) AS reused
FROM trained FULL JOIN engines USING (run)
WHERE coalesce(trained, 0) + coalesce(engines, 0) + coalesce(twice, 0) + coalesce(reused, 0) > 0
ORDER BY run

-- cli_problems: What the collectors of a run lost or complained about, worst first; of those that ended while they closed, what was left; and
-- weights in engines that nobody named. Grain: component and event. Inputs: health_records, weight_records, weight_readings. Parameters: $run.
SELECT component, event, severity, sum(count)::BIGINT AS times, sum(sequences)::BIGINT AS sequences_lost,
       sum(tokens)::BIGINT AS tokens_lost, max(time) AS last_at, arg_max(message, time) AS message
FROM health_records
WHERE run = $run AND (severity <> 'info' OR event = 'closing'
                      AND writer NOT IN (SELECT writer FROM health_records WHERE run = $run AND event = 'closed'))
GROUP BY component, event, severity
UNION ALL BY NAME
SELECT 'vllm_plugin' AS component, 'weights_unknown' AS event, 'warning' AS severity, count(*) AS times, max(coalesce(applied_at, time)) AS last_at,
       concat(calls, ' may have changed the weights, so their version is unknown: call logprobe.collectors.weights.mark(version) after it, or list ',
              'it in LOGPROBE_RECORD=harmless=… if it leaves them unchanged') AS message
FROM weight_records WHERE run = $run AND source = 'engine' AND version IS NULL AND calls IS NOT NULL GROUP BY calls
UNION ALL BY NAME
SELECT 'vllm_plugin' AS component, 'weights_changed_unannounced' AS event, 'warning' AS severity, count(*) AS times, max(applied_at) AS last_at,
       'the weights changed although no load, label or mark was seen: something writes them in place; their version is unknown until the next '
       'weights.mark(version)' AS message
FROM weight_readings WHERE run = $run AND reason = 'unannounced' HAVING count(*) > 0
ORDER BY severity, tokens_lost DESC, event

-- cli_self_tests: The newest self-test of every collector that made one.
-- Grain: run and writer. Inputs: health_records. Parameters: none.
SELECT run, writer, arg_max(component, time) AS component, max(time) AS time, arg_max(severity, time) AS severity,
       arg_max(message, time) AS message
FROM health_records
WHERE event = 'self_test'
GROUP BY run, writer
ORDER BY run, time

-- cli_sent: What the collectors of a run say they have written, and how much of exactly that is stored. Each counts its sequences up to the segment
-- of its newest account (heartbeat or end), so that the two can be compared while it goes on writing.
-- Grain: one row. Inputs: health_records, segments. Parameters: $run. `collectors`: that give such an account; 0: nothing is known.
-- `missing`: quarantined, lost, or still in the spool; `surplus`: stored more often than written.
WITH accounts AS (
    SELECT writer, max_by(details, time) AS details FROM health_records
    WHERE run = $run AND event IN ('heartbeat', 'closed') AND json_valid(details) GROUP BY writer
), stated AS (
    SELECT writer, try_cast(details ->> '$.written.last' AS BIGINT) AS last,
           try_cast(details ->> '$.written.sequences' AS BIGINT) + try_cast(details ->> '$.reduced.sequences' AS BIGINT) AS sent
    FROM accounts
), arrived AS (
    SELECT writer, sum(rows)::BIGINT AS stored
    FROM segments JOIN stated USING (writer)
    WHERE run = $run AND kind IN ('training', 'statistics', 'rollout') AND sequence <= last GROUP BY writer
), refused AS (
    SELECT writer, sum(sequences)::BIGINT AS bad_rows
    FROM health_records
    WHERE run = $run AND event = 'bad_rows' AND regexp_matches(details, '\.(training|statistics|rollout)\.') GROUP BY writer
)
SELECT count(*) AS collectors, coalesce(sum(sent), 0)::BIGINT AS sent, coalesce(sum(stored), 0)::BIGINT AS stored,
       coalesce(sum(greatest(sent - coalesce(stored, 0) - coalesce(bad_rows, 0), 0)), 0)::BIGINT AS missing,
       coalesce(sum(greatest(coalesce(stored, 0) - sent, 0)), 0)::BIGINT AS surplus
FROM stated LEFT JOIN arrived USING (writer) LEFT JOIN refused USING (writer)
WHERE sent IS NOT NULL AND last IS NOT NULL

-- cli_steps: The computed steps of a run, between two steps (both included; null: no bound).
-- Grain: step. Inputs: step_summaries. Parameters: $run, $first, $last.
SELECT step, tokens, sequences
FROM step_summaries
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
ORDER BY step

-- cli_stray_marks: Marks that name an engine which the run does not have. Grain: run and name. Inputs: weight_records, config_records (every watched engine
-- writes its configuration under its name). Parameters: $run (null: all). `engines`: the names there are; of data-parallel replicas the
-- name that they share counts too. A run whose engines are not known has no such marks.
WITH engines AS (
    SELECT DISTINCT run, replica FROM config_records WHERE kind = 'engine_config' AND run = coalesce($run, run)
), named AS (
    SELECT run, replica FROM engines WHERE replica IS NOT NULL
    UNION SELECT run, regexp_replace(replica, '-dp[0-9]+$', '') FROM engines WHERE replica IS NOT NULL
), known AS (
    SELECT run, coalesce(list(DISTINCT replica ORDER BY replica) FILTER (replica IS NOT NULL), []) AS engines
    FROM engines GROUP BY run
)
SELECT w.run, w.replica, count(*) AS marks, any_value(k.engines) AS engines
FROM weight_records AS w JOIN known AS k USING (run)
WHERE w.source = 'trainer' AND w.replica IS NOT NULL AND (w.run, w.replica) NOT IN (SELECT (run, replica) FROM named)
GROUP BY w.run, w.replica
ORDER BY w.run, w.replica
