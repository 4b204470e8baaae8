-- raw_files: Raw files, oldest first. Grain: one row per file. Inputs: raw_files.
SELECT path, run, kind, min_step, max_step, rows, tokens, bytes, created_at, compacted, location
FROM raw_files
ORDER BY created_at, max_step NULLS FIRST, path

-- raw_locations: Where raw files lie. Grain: one row per path of $paths that is a file. Inputs: raw_files.
SELECT path, location FROM raw_files WHERE path IN (SELECT unnest($paths::VARCHAR[]))

-- raw_move: A file is in the object store from now on, unless it has been merged or removed meanwhile. Parameters: $path, $url, $sums.
UPDATE raw_files SET location = $url, sums = $sums WHERE path = $path AND location IS NULL RETURNING path

-- raw_sums: Checksums of the parts of objects ($urls), where they are known. Grain: one row per object. Inputs: raw_files.
SELECT location, sums FROM raw_files WHERE sums IS NOT NULL AND location IN (SELECT unnest($urls::VARCHAR[]))

-- raw_moved: Raw files of one $kind in the object store, of $runs (null: all) that may hold steps $first to $last (null: no bound). Grain: file. A file with
-- rollout records is of the steps that its records were joined with. Inputs: raw_files, segments, training_sequences, sampled_sequences.
WITH joined AS (
    SELECT rollout_segment FROM training_sequences
    WHERE list_contains($runs::VARCHAR[], run) AND step BETWEEN $first::BIGINT AND $last::BIGINT
    UNION
    SELECT rollout_segment FROM sampled_sequences
    WHERE list_contains($runs::VARCHAR[], run) AND step BETWEEN $first::BIGINT AND $last::BIGINT
)
SELECT location
FROM raw_files
WHERE location IS NOT NULL AND kind = $kind AND ($runs::VARCHAR[] IS NULL OR list_contains($runs::VARCHAR[], run))
    AND CASE
        WHEN kind = 'training' THEN coalesce(max_step >= $first::BIGINT, true) AND coalesce(min_step <= $last::BIGINT, true)
        ELSE $runs::VARCHAR[] IS NULL OR $first::BIGINT IS NULL OR path IN (
            SELECT raw_file FROM segments WHERE segment_id IN (FROM joined)
        )
    END
ORDER BY location

-- raw_moved_runs: Which runs have raw files of one $kind in the object store, and of which steps (null for rollout records). Grain: run. Inputs: raw_files.
SELECT run, min(min_step) AS first, max(max_step) AS last
FROM raw_files
WHERE location IS NOT NULL AND kind = $kind
GROUP BY run

-- raw_places: Where the raw files of $run lie that may hold steps $first to $last (null: no bound) and records of $segments (null: of any); a file with
-- rollout records belongs to the steps that its records were joined with. Grain: file.
-- Inputs: raw_files, segments, training_sequences, sampled_sequences, rollout_sequences. `location`: address of the object; null: on the disk, at `path`.
WITH joined AS (
    SELECT rollout_segment FROM training_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
    UNION
    SELECT rollout_segment FROM sampled_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
    UNION
    -- A sequence of several engine requests was joined with one record made of theirs.
    SELECT unnest(list_transform(r.parts, lambda p: p.segment_id))
    FROM rollout_sequences AS r
    SEMI JOIN training_sequences AS t
        ON t.run = $run AND t.step BETWEEN $first::BIGINT AND $last::BIGINT AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE r.run = $run AND r.parts IS NOT NULL
)
SELECT kind, path, location
FROM raw_files
WHERE run = $run
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

-- raw_times: Between which times the rollout records were sampled that sequences of the steps $first to $last of $run were joined with; null where the
-- time of one is not known (microseconds since 1970). Grain: one row. Inputs: training_sequences, sampled_sequences, rollout_sequences.
WITH joined AS (
    SELECT rollout_segment, rollout_row FROM training_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
    UNION
    SELECT rollout_segment, rollout_row FROM sampled_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
)
SELECT
    CASE WHEN count(*) = count(r.time) THEN epoch_us(min(r.time)) END AS sampled_from,
    CASE WHEN count(*) = count(r.time) THEN epoch_us(max(r.time)) END AS sampled_to
FROM joined AS j LEFT JOIN rollout_sequences AS r
    ON r.run = $run AND r.segment_id = j.rollout_segment AND r.row = j.rollout_row
WHERE j.rollout_segment IS NOT NULL
