-- annotation_add: Notes a tag, an owner or a note of $run; one that holds already stays as it is. Grain: one row. Inputs: annotations.
INSERT INTO annotations (run, kind, step, words, author, time)
SELECT $run, $kind, $step::BIGINT, $words, $author, $now
WHERE NOT EXISTS (
    SELECT 1 FROM annotations
    WHERE run = $run AND kind = $kind AND step IS NOT DISTINCT FROM $step::BIGINT AND words = $words AND removed_at IS NULL
)

-- annotation_list: What people say of $run, oldest first. Grain: annotation that holds. Inputs: annotations.
SELECT kind, step, words, author, time FROM annotations WHERE run = $run AND removed_at IS NULL ORDER BY number

-- annotation_remove: Takes back annotations of $run of a kind: those with $words (null: all), at $step (null: of the run), or
-- $anywhere. Grain: annotation. Inputs: annotations.
UPDATE annotations SET removed_at = $now
WHERE run = $run AND kind = $kind AND words = coalesce($words, words) AND ($anywhere::BOOLEAN OR step IS NOT DISTINCT FROM $step::BIGINT)
    AND removed_at IS NULL
