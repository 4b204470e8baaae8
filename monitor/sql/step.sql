-- step_sequences: Grain: one row per training sequence of the steps of incoming (Arrow: run, step, place). `step`: the place of the step; see step_tables.
-- Inputs: incoming, training_sequences, rollout_sequences (the record a sequence was joined with). Parameters: the range of what is chosen,
-- for the zone maps. `stated`: the trainer says which weights sampled it; see step_stated. `sampled` of its tokens were sampled, as step_spans
-- counts them; `whole`: all by the weights `version` (null: unknown), by what the engine alone says.
SELECT i.place AS step, t.rowid AS sequence, t.run, t.time, n_expected, reward, advantage_abs_sum, entropy_sum, entropy_n, token_match, length_match,
       routes_match, routes_expected, routes_compared, routes_equal, t.weight_version AS trainer_version, rollout_versions IS NOT NULL AS stated,
       CASE WHEN alignment = 'prefix' THEN n_expected ELSE coalesce(r.n_tokens, n_expected) END AS sampled,
       r.spans[1]."version" AS version,
       rollout_versions IS NULL AND CASE coalesce(len(r.spans), 0)
           WHEN 0 THEN true WHEN 1 THEN r.spans[1]."start" <= 0 AND r.spans[1]."end" >= sampled ELSE false
       END AS whole
FROM training_sequences AS t
JOIN incoming AS i ON i.run = t.run AND i.step = t.step
LEFT JOIN rollout_sequences AS r
    ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row AND r.run BETWEEN $first_run AND $last_run
WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last

-- step_stated: What engine and trainer both say about the weights that sampled a sequence, in tokens: see version_counts. Grain: one row per training
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

-- step_statistics: Grain: one row per training sequence and pair of the steps of incoming (Arrow: run, step, place). `step`: the place of the step; see
-- step_tables. Inputs: incoming, statistics. Parameters: the range of what is chosen, for the zone maps.
SELECT i.place AS step, t.* EXCLUDE (run, segment_id, row, step)
FROM statistics AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last

-- step_weights: Grain: one row per weight record of $run that names a version. Inputs: weight_records.
SELECT version, step, coalesce(applied_at, time) AS time, source
FROM weight_records
WHERE run = $run AND version IS NOT NULL

-- step_weights_of: Grain: one row per weight record of the runs of incoming (Arrow: run, step, place) that names one of $versions, or any version of $whole
-- (runs whose versions count by their order), or one that is the result of a step of incoming (`news`). Inputs: incoming, weight_records.
WITH results AS (
    SELECT DISTINCT t.run, t.version FROM weight_records AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
)
SELECT t.run, t.version, t.step, coalesce(t.applied_at, t.time) AS time, t.source, t.replica,
       t.requested_at, t.started_at, t.applied_at, t.resumed_at, r.run IS NOT NULL AS news
FROM weight_records AS t LEFT JOIN results AS r ON r.run = t.run AND r.version = t.version
WHERE t.run IN (SELECT run FROM incoming) AND t.version IS NOT NULL
    AND (r.run IS NOT NULL OR list_contains($versions::VARCHAR[], t.version) OR list_contains($whole::VARCHAR[], t.run))
