-- Collectors that ended without closing, and what that may have cost. Grain: run and writer. Inputs: health_records, segments,
-- training_sequences. Parameters: $run (null: all), $now, $silent (seconds without a heartbeat after which a writer has ended).
-- `sequences`, `tokens`: what an engine had not written (tokens null: a request had no limit); null for others. `last_step`: the newest that
-- a trainer recorded; `absent_steps`: later steps of the run without any sequence of its rank; `flush_seconds`: what it wrote at once.
WITH signs AS (
    SELECT run, writer, arg_min(component, time) AS component, max(time) AS last_sign, bool_or(event = 'closed') AS closed,
           arg_max(details, time) FILTER (event = 'unwritten') AS said,
           arg_min(details, time) FILTER (event = 'started') AS began
    FROM health_records WHERE run = coalesce($run, run) GROUP BY run, writer
), ended AS (
    SELECT run, writer, component, last_sign, (said ->> '$.sequences')::BIGINT AS sequences, (said ->> '$.tokens')::BIGINT AS tokens,
           try_cast(began ->> '$.rank' AS INTEGER) AS rank, try_cast(began ->> '$.flush_interval' AS DOUBLE) AS flush_seconds
    FROM signs
    WHERE NOT closed AND coalesce(said, began) IS NOT NULL AND epoch($now::TIMESTAMPTZ) - epoch(last_sign) > $silent
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
