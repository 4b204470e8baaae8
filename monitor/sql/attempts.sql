-- attempts_runs: Runs of incoming (Arrow: run, step) that may have been trained again under their name: a rank said that it begins after another writer of
-- that rank had started, or said so twice; or an older attempt has been set aside already. Grain: run. Inputs: health_records, older_sequences.
WITH signs AS (
    SELECT run, writer, event, time, CASE WHEN json_valid(details) THEN try_cast(details ->> '$.rank' AS INTEGER) END AS rank
    FROM health_records
    WHERE event IN ('started', 'training_begins') AND run IN (SELECT run FROM incoming)
)
SELECT DISTINCT later.run
FROM signs AS later
JOIN signs AS earlier ON earlier.run = later.run AND earlier.rank IS NOT DISTINCT FROM later.rank AND earlier.time < later.time
    AND (earlier.writer <> later.writer OR earlier.event = later.event)
WHERE later.event = 'training_begins'
UNION
SELECT DISTINCT run FROM older_sequences WHERE run IN (SELECT run FROM incoming)

-- attempts_disproved: Sequences that were set aside for older ones, of the runs of incoming (Arrow: run, step), although their writer has recorded after the attempt
-- that was taken for the newer one had begun: two sessions at a time. Grain: training record. Inputs: older_sequences, training_sequences, segments.
WITH last_records AS (
    SELECT t.run, s.writer, max(t.time) AS last
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run IN (SELECT run FROM incoming) AND t.run IN (SELECT run FROM older_sequences)
    GROUP BY ALL
)
SELECT o.run, o.step, o.segment_id, o.row
FROM older_sequences AS o JOIN last_records AS l ON l.run = o.run AND l.writer = o.writer
WHERE o.writer <> o.repeated_by AND l.last >= o.began

-- attempts_older: Sequences of the steps of incoming (Arrow: run, step) that a later attempt has trained again: a trainer of the same rank said that it begins at
-- that step or before it, after they were recorded, and has recorded the step since. Their writer is that trainer itself, or has
-- recorded nothing after that beginning. Grain: training record. Inputs: training_sequences, health_records, segments.
WITH begins AS (
    SELECT run, writer, time AS began, step AS first_step, CASE WHEN json_valid(details) THEN try_cast(details ->> '$.rank' AS INTEGER) END AS rank
    FROM health_records
    WHERE event = 'training_begins' AND step IS NOT NULL AND run IN (SELECT run FROM incoming)
), candidates AS (
    SELECT t.run, t.step, t.rank, t.time, t.segment_id, t.row, s.writer
    FROM training_sequences AS t
    JOIN incoming AS i ON i.run = t.run AND i.step = t.step
    JOIN segments AS s ON s.segment_id = t.segment_id
), last_records AS (
    SELECT t.run, s.writer, max(t.time) AS last
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run IN (SELECT run FROM begins)
    GROUP BY ALL
)
SELECT c.run, c.step, c.segment_id, c.row, c.writer, max_by(b.writer, b.began) AS repeated_by, max(b.began) AS began
FROM candidates AS c
JOIN begins AS b ON b.run = c.run AND b.rank IS NOT DISTINCT FROM c.rank AND b.first_step <= c.step AND b.began > c.time
JOIN last_records AS l ON l.run = c.run AND l.writer = c.writer
WHERE (c.writer = b.writer OR l.last < b.began) AND EXISTS (
    FROM candidates AS again
    WHERE again.run = c.run AND again.step = c.step AND again.rank IS NOT DISTINCT FROM c.rank
        AND again.writer = b.writer AND again.time >= b.began
)
GROUP BY c.run, c.step, c.segment_id, c.row, c.writer

-- attempts_folded: Those of the steps of incoming (Arrow: run, step) that are folded, and that a later attempt has trained again: as attempts_older has it of the
-- sequences that the sample names, and of the newest record of all. Grain: step. Inputs: folded_steps, sampled_sequences, training_sequences,
-- health_records, segments.
WITH begins AS (
    SELECT run, writer, time AS began, step AS first_step, CASE WHEN json_valid(details) THEN try_cast(details ->> '$.rank' AS INTEGER) END AS rank
    FROM health_records
    WHERE event = 'training_begins' AND step IS NOT NULL AND run IN (SELECT run FROM incoming)
), candidates AS (
    SELECT f.run, f.step, b.writer, b.began
    FROM folded_steps AS f
    JOIN incoming AS i ON i.run = f.run AND i.step = f.step
    JOIN begins AS b ON b.run = f.run AND b.first_step <= f.step AND b.began > f.time
    JOIN training_sequences AS t ON t.run = f.run AND t.step = f.step AND t.rank IS NOT DISTINCT FROM b.rank AND t.time >= b.began
    JOIN segments AS s ON s.segment_id = t.segment_id AND s.writer = b.writer
), writers AS (
    SELECT DISTINCT q.run, q.step, s.writer
    FROM sampled_sequences AS q JOIN incoming AS i ON i.run = q.run AND i.step = q.step JOIN segments AS s ON s.segment_id = q.segment_id
), last_records AS (
    SELECT t.run, s.writer, max(t.time) AS last
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run IN (SELECT run FROM candidates)
    GROUP BY ALL
), again AS (
    SELECT c.run, c.step, c.writer, c.began
    FROM candidates AS c
    JOIN writers AS w ON w.run = c.run AND w.step = c.step
    LEFT JOIN last_records AS l ON l.run = w.run AND l.writer = w.writer
    GROUP BY c.run, c.step, c.writer, c.began
    HAVING bool_and(w.writer = c.writer OR l.last IS NULL OR l.last < c.began)
)
SELECT run, step, max_by(writer, began) AS repeated_by, max(began) AS began FROM again GROUP BY run, step

-- attempts_set_aside_sample: Sets aside what is kept of folded steps, their samples. Grain: sequence. Inputs: incoming (Arrow: run, step, repeated_by, began),
-- sampled_sequences, segments.
INSERT INTO older_sequences BY NAME
SELECT q.run, q.step, q.rank, q.sample_id, q.group_id, q.time, q.n_total, q.n_expected, q.reward, q.weight_version, q.rollout_source, q.alignment,
       q.token_match, q.length_match, q.tags, q.raw_kept, q.rollout_segment, q.rollout_row, q.segment_id, q.row, s.writer, i.repeated_by, i.began
FROM sampled_sequences AS q
JOIN incoming AS i ON i.run = q.run AND i.step = q.step
JOIN segments AS s ON s.segment_id = q.segment_id

-- attempts_set_aside: Sets sequences aside. Grain: training record. Inputs: incoming (Arrow: key, writer, repeated_by, began), training_sequences.
INSERT INTO older_sequences BY NAME
SELECT t.*, i.writer, i.repeated_by, i.began
FROM training_sequences AS t
JOIN incoming AS i ON i.run = t.run AND i.step = t.step AND i.segment_id = t.segment_id AND i.row = t.row

-- attempts_statistics: Statistics of sequences that were set aside; the join may write some after that. Grain: training record and pair.
-- Inputs: incoming (Arrow: run, step), statistics, older_sequences.
INSERT INTO older_statistics BY NAME
SELECT s.*
FROM statistics AS s
JOIN incoming AS i ON i.run = s.run AND i.step = s.step
SEMI JOIN older_sequences AS o ON o.run = s.run AND o.step = s.step AND o.segment_id = s.segment_id AND o.row = s.row

-- attempts_forget_statistics: Statistics of sequences that were set aside. Inputs: incoming (Arrow: run, step), older_sequences.
DELETE FROM statistics AS s USING older_sequences AS o, incoming AS i
WHERE i.run = s.run AND i.step = s.step AND o.run = s.run AND o.step = s.step AND o.segment_id = s.segment_id AND o.row = s.row

-- attempts_records: Step records of attempts whose sequences were set aside: of the same rank, from before the newest began. Grain: step record.
-- Inputs: incoming (Arrow: run, step), step_records, older_sequences.
INSERT INTO older_step_records BY NAME
SELECT r.*
FROM step_records AS r
JOIN incoming AS i ON i.run = r.run AND i.step = r.step
SEMI JOIN older_sequences AS o ON o.run = r.run AND o.step = r.step AND o.rank IS NOT DISTINCT FROM r.rank AND r.time < o.began

-- attempts_forget_records: Step records of attempts whose sequences were set aside. Inputs: incoming (Arrow: run, step), older_sequences.
DELETE FROM step_records AS r USING older_sequences AS o, incoming AS i
WHERE i.run = r.run AND i.step = r.step AND o.run = r.run AND o.step = r.step AND o.rank IS NOT DISTINCT FROM r.rank AND r.time < o.began

-- attempts_forget: Rows that are in another table now. {table}: of sequences or of their statistics. Inputs: incoming (Arrow: key).
DELETE FROM {table} AS t USING incoming AS i
WHERE t.run = i.run AND t.step = i.step AND t.segment_id = i.segment_id AND t.row = i.row

-- attempts_bring_back: Makes sequences count again that were set aside. Grain: training record. Inputs: incoming (Arrow: key), older_sequences.
INSERT INTO training_sequences BY NAME
SELECT o.* EXCLUDE (writer, repeated_by, began)
FROM older_sequences AS o
JOIN incoming AS i ON i.run = o.run AND i.step = o.step AND i.segment_id = o.segment_id AND i.row = o.row

-- attempts_bring_back_statistics: Statistics of sequences that count again. Grain: training record and pair. Inputs: incoming (Arrow: key), older_statistics.
INSERT INTO statistics BY NAME
SELECT o.*
FROM older_statistics AS o
JOIN incoming AS i ON i.run = o.run AND i.step = o.step AND i.segment_id = o.segment_id AND i.row = o.row

-- attempts_bring_back_records: Step records of the steps whose sequences count again. Grain: step record. Inputs: incoming (Arrow: key), older_step_records.
INSERT INTO step_records BY NAME SELECT * FROM older_step_records WHERE (run, step) IN (SELECT (run, step) FROM incoming)

-- attempts_forget_older_records: Step records that count again. Inputs: incoming (Arrow: key).
DELETE FROM older_step_records WHERE (run, step) IN (SELECT (run, step) FROM incoming)
