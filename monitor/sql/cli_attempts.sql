-- Steps that were trained more than once under one run name: a trainer went on from a checkpoint, and both attempts are in the step's
-- metrics. A writer is of an older attempt where another one of the same rank, which started after its last sequence, has sequences of
-- the same step, too. Grain: run. Inputs: segments, training_sequences, health_records. Parameters: $run (null: all).
-- `older`: sequences of older attempts in these steps.
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
)
SELECT run, count(DISTINCT step) AS steps, min(step) AS first_step, max(step) AS last_step, sum(sequences)::BIGINT AS older
FROM again GROUP BY run ORDER BY run
