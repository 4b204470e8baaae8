-- Steps that were trained more than once under one run name, because a trainer went on from a checkpoint. Grain: run. Inputs: segments,
-- training_sequences, health_records, all_sequences. Parameters: $run (null: all).
-- `aside_*`: what older attempts recorded is set aside. `older`: sequences of `steps` steps that look like it and count, because the later
-- session did not say where it begins: another writer of the same rank, which started after the last of them, has recorded the step, too.
WITH starts AS (
    SELECT run, writer, min(time) AS started FROM health_records
    WHERE event = 'started' AND run = coalesce($run, run) GROUP BY run, writer
), parts AS (
    SELECT t.run, t.step, t.rank, s.writer, count(*) AS sequences, max(t.time) AS newest
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run = coalesce($run, t.run) GROUP BY ALL
), ends AS (
    SELECT run, writer, max(newest) AS ended FROM parts GROUP BY run, writer
), again AS (
    SELECT DISTINCT old.run, old.step, old.rank, old.writer, old.sequences
    FROM parts AS old
    JOIN ends USING (run, writer)
    JOIN parts AS new ON new.run = old.run AND new.step = old.step AND new.writer <> old.writer AND new.rank IS NOT DISTINCT FROM old.rank
    JOIN starts ON starts.run = new.run AND starts.writer = new.writer AND starts.started > ends.ended
), counting AS (
    SELECT run, count(DISTINCT step) AS steps, min(step) AS first_step, max(step) AS last_step, sum(sequences)::BIGINT AS older
    FROM again GROUP BY run
), aside AS (
    SELECT run, count(DISTINCT step) AS aside_steps, min(step) AS aside_first, max(step) AS aside_last, count(*) AS aside
    FROM all_sequences WHERE repeated_by IS NOT NULL AND run = coalesce($run, run) GROUP BY run
)
FROM counting FULL JOIN aside USING (run) ORDER BY run
