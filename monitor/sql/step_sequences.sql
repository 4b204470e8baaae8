-- Grain: one row per training sequence of the steps of incoming (Arrow: run, step, place). `step`: the place of the step; see step_tables.
-- Inputs: incoming, training_sequences, rollout_sequences (the record a sequence was joined with). Parameters: the range of what is
-- chosen, for the zone maps. `versions_compared`, `versions_differing`: see version_counts.
WITH chosen AS (
    SELECT t.*, t.rowid AS sequence, i.place
    FROM training_sequences AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
    WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last
),
stated AS (
    SELECT t.sequence, version_counts(r.spans, t.rollout_versions, t.alignment) AS versions
    FROM chosen AS t
    LEFT JOIN rollout_sequences AS r
        ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row AND r.run BETWEEN $first_run AND $last_run
    WHERE t.rollout_versions IS NOT NULL
)
SELECT place AS step, sequence, time, n_expected, reward, advantage_abs_sum, entropy_sum, entropy_n, token_match, length_match,
       routes_match, routes_expected, routes_compared, routes_equal,
       versions.compared AS versions_compared, versions.differing AS versions_differing
FROM chosen LEFT JOIN stated USING (sequence)
