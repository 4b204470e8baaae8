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
