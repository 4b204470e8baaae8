-- What engine and trainer both say about the weights that sampled a sequence, in tokens: see version_counts. Grain: one row per training
-- sequence of the steps of incoming (Arrow: run, step, place) whose trainer says anything. Inputs: incoming, training_sequences,
-- rollout_sequences (the record a sequence was joined with). Parameters: the range of what is chosen, for the zone maps.
SELECT sequence, versions.compared AS versions_compared, versions.differing AS versions_differing
FROM (
    SELECT t.rowid AS sequence, version_counts(r.spans, t.rollout_versions, t.alignment) AS versions
    FROM training_sequences AS t
    JOIN incoming AS i ON i.run = t.run AND i.step = t.step
    LEFT JOIN rollout_sequences AS r
        ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row AND r.run BETWEEN $first_run AND $last_run
    WHERE t.rollout_versions IS NOT NULL AND t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last
)
