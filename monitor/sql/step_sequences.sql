-- Grain: one row per training sequence of the steps of incoming (Arrow: run, step, place). `step`: the place of the step; see step_tables.
-- Inputs: incoming, training_sequences. Parameters: the range of what is chosen, for the zone maps. `stated`: the trainer says which weights
-- sampled it; see step_stated.
SELECT i.place AS step, t.rowid AS sequence, time, n_expected, reward, advantage_abs_sum, entropy_sum, entropy_n, token_match, length_match,
       routes_match, routes_expected, routes_compared, routes_equal, rollout_versions IS NOT NULL AS stated
FROM training_sequences AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last
