-- attempts_folded: Those of the steps of incoming (Arrow: run, step) that are folded, and that a later attempt has trained again: as `monitor.live.attempts` has it of the
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

-- attempts_statistics: Statistics of sequences that were set aside. Grain: training record and pair.
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
