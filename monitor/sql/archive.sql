-- archive_again: Sequences whose tokens are in files after all. To be run before archive_places. Grain: training record. Inputs: incoming (Arrow: path,
-- segment_id), segments.
UPDATE all_sequences SET raw_kept = true
WHERE NOT raw_kept AND segment_id IN (
    SELECT segment_id FROM incoming JOIN segments USING (segment_id) WHERE kind = 'training' AND rows > 0 AND raw_file IS NULL
)

-- archive_files: Makes files of the archive exist for readers. To be run after archive_places. Grain: one row per file. Inputs: incoming (Arrow), segments.
INSERT INTO raw_files BY NAME
SELECT i.*, coalesce(t.tokens, 0) AS tokens
FROM incoming AS i LEFT JOIN (
    SELECT raw_file, sum(tokens)::BIGINT AS tokens FROM segments WHERE raw_file IN (SELECT path FROM incoming) GROUP BY raw_file
) AS t ON t.raw_file = i.path

-- archive_forget: Makes files of the archive cease to exist for readers. Grain: one row per file. Inputs: incoming (Arrow: path).
DELETE FROM raw_files WHERE path IN (SELECT path FROM incoming)

-- archive_places: The files that have the rows of segments now. Grain: one row per segment. Inputs: incoming (Arrow: path, segment_id).
UPDATE segments SET raw_file = i.path FROM incoming AS i
WHERE segments.segment_id = i.segment_id AND segments.kind IN ('training', 'rollout') AND segments.rows > 0

-- archive_sampled: Rollout records of segments, as statistics keep them. Grain: rollout record. Inputs: incoming (Arrow: segment_id), rollout_sequences.
SELECT * FROM rollout_sequences WHERE segment_id IN (SELECT segment_id FROM incoming) AND parts IS NULL

-- archive_trained: Training records of segments with their statistics, as statistics keep them. Grain: training record. `repeated_by`, `began`: of an
-- older attempt; `made`: the rollout record that was made of several requests. Inputs: incoming (Arrow: segment_id), all_sequences,
-- all_statistics, rollout_sequences.
WITH sums AS (
    SELECT segment_id, row, list(s ORDER BY s.pair) AS statistics
    FROM (SELECT * EXCLUDE (repeated_by) FROM all_statistics) AS s
    WHERE segment_id IN (SELECT segment_id FROM incoming)
    GROUP BY segment_id, row
)
SELECT t.*, sums.statistics, CASE WHEN r.segment_id IS NOT NULL THEN r END AS made
FROM all_sequences AS t
LEFT JOIN sums USING (segment_id, row)
LEFT JOIN rollout_sequences AS r ON r.parts IS NOT NULL AND r.segment_id = 'parts/' || t.segment_id AND r.row = t.row
WHERE t.segment_id IN (SELECT segment_id FROM incoming)

-- archive_waiting: Segments of $run (null: of any) whose tokens are in the spool. Grain: segment. Inputs: segments.
SELECT raw_file, segment_id FROM segments WHERE starts_with(raw_file, 'spool/') AND run = coalesce($run, run)
