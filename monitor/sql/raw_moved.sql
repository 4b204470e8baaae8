-- Raw files of one $kind in the object store, of $runs (null: all) that may hold steps $first to $last (null: no bound). Grain: file. A file with
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
