-- raw_files: Files of the archive that the index knows, oldest first. Grain: one row per file. Inputs: raw_files.
SELECT path, run, kind, rows, bytes, created_at FROM raw_files ORDER BY created_at, max_step NULLS FIRST, path

-- raw_places: Where the raw files of $run lie that may hold steps $first to $last (null: no bound) and records of $segments (null: of any); a file with
-- rollout records belongs to the steps that its records were joined with. Grain: file.
-- Inputs: raw_files, segments, training_sequences, rollout_sequences.
WITH joined AS (
    SELECT rollout_segment FROM training_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
    UNION
    -- A sequence of several engine requests was joined with one record made of theirs.
    SELECT unnest(list_transform(r.parts, lambda p: p.segment_id))
    FROM rollout_sequences AS r
    SEMI JOIN training_sequences AS t
        ON t.run = $run AND t.step BETWEEN $first::BIGINT AND $last::BIGINT AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE r.run = $run AND r.parts IS NOT NULL
)
SELECT kind, path
FROM raw_files
WHERE run = $run AND kind IN ('training', 'rollout')
    AND ($segments::VARCHAR[] IS NULL OR path IN (
        SELECT raw_file FROM segments WHERE run = $run AND segment_id IN (SELECT unnest($segments::VARCHAR[]))
    ))
    AND CASE
        WHEN kind = 'training' THEN coalesce(max_step >= $first::BIGINT, true) AND coalesce(min_step <= $last::BIGINT, true)
        ELSE $first::BIGINT IS NULL OR $last::BIGINT IS NULL OR path IN (
            SELECT raw_file FROM segments WHERE run = $run AND segment_id IN (FROM joined)
        )
    END
ORDER BY path
