-- Steps that were trained more than once under one run name, because a trainer went on from a checkpoint. Grain: run. Inputs: segments,
-- training_sequences, health_records, all_sequences. Parameters: $run (null: all).
-- `aside_*`: what older attempts recorded is set aside. `older`: sequences of `steps` steps that look like it and count, because the later
-- attempt did not say where it begins: another writer of the same rank, which started after the last of them, has recorded the step, too; or the
-- same writer has recorded it again, after it had gone back by two steps or more.
WITH starts AS (
    SELECT run, writer, min(time) AS started FROM health_records
    WHERE event = 'started' AND run = coalesce($run, run) GROUP BY run, writer
), sequences AS (  -- `place`: the order in which its writer recorded it; records of a file may have one time
    SELECT t.run, t.step, t.rank, t.time, s.writer, (epoch_us(t.time)::HUGEINT << 64) + (s.sequence::HUGEINT << 32) + t.row AS place
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run = coalesce($run, t.run)
), parts AS (
    SELECT run, step, rank, writer, count(*) AS sequences, max(time) AS ended, min(place) AS oldest, max(place) AS newest FROM sequences GROUP BY ALL
), ends AS (
    SELECT run, writer, max(ended) AS ended FROM parts GROUP BY run, writer
), overtaken AS (
    SELECT *, min(oldest) OVER (PARTITION BY run, writer, rank ORDER BY step RANGE BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING) AS later FROM parts
), back AS (
    SELECT DISTINCT run, writer, rank FROM overtaken WHERE oldest < later AND newest > later
), turns AS (
    SELECT s.run, s.writer, s.rank, s.step, s.place, coalesce(s.step < lag(s.step) OVER attempts - 1, false)::INTEGER AS turn
    FROM sequences AS s JOIN back AS b ON b.run = s.run AND b.writer = s.writer AND b.rank IS NOT DISTINCT FROM s.rank
    WINDOW attempts AS (PARTITION BY s.run, s.writer, s.rank ORDER BY s.place)
), attempts AS (
    SELECT *, sum(turn) OVER (PARTITION BY run, writer, rank ORDER BY place) AS attempt FROM turns
), reached AS (
    SELECT run, writer, rank, attempt, max(step) AS step FROM attempts GROUP BY ALL
), ordered AS (  -- records of a file may be in any order: only where each attempt comes further than the one before are they attempts
    SELECT run, writer, rank FROM (SELECT *, lag(step) OVER (PARTITION BY run, writer, rank ORDER BY attempt) AS before FROM reached)
    GROUP BY run, writer, rank HAVING NOT starts_with(writer, 'import-') OR bool_and(before IS NULL OR step > before)
), again AS (
    SELECT DISTINCT old.run, old.step, old.rank, old.writer, old.sequences
    FROM parts AS old
    JOIN ends USING (run, writer)
    JOIN parts AS new ON new.run = old.run AND new.step = old.step AND new.writer <> old.writer AND new.rank IS NOT DISTINCT FROM old.rank
    JOIN starts ON starts.run = new.run AND starts.writer = new.writer AND starts.started > ends.ended
    UNION ALL
    SELECT t.run, t.step, t.rank, t.writer, count(*) FILTER (t.attempt < t.newest) AS sequences
    FROM (SELECT *, max(attempt) OVER (PARTITION BY run, writer, rank, step) AS newest FROM attempts) AS t
    JOIN ordered AS o ON o.run = t.run AND o.writer = t.writer AND o.rank IS NOT DISTINCT FROM t.rank
    GROUP BY t.run, t.step, t.rank, t.writer
    HAVING min(t.attempt) < max(t.attempt)
), counting AS (
    SELECT run, count(DISTINCT step) AS steps, min(step) AS first_step, max(step) AS last_step, sum(sequences)::BIGINT AS older
    FROM again GROUP BY run
), aside AS (
    SELECT run, count(DISTINCT step) AS aside_steps, min(step) AS aside_first, max(step) AS aside_last, count(*) AS aside
    FROM all_sequences WHERE repeated_by IS NOT NULL AND run = coalesce($run, run) GROUP BY run
)
FROM counting FULL JOIN aside USING (run) ORDER BY run
