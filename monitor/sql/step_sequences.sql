-- Grain: one row per training sequence of the steps of incoming (Arrow: run, step, place). `step`: the place of the step; see step_tables.
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
