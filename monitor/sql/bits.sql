-- bits_candidates: Those of $runs (a list) whose certificate may be zero or broken: they may claim bit equality, or had $steps steps in which all compared
-- tokens were equal. Grain: run. Inputs: config_records, step_summaries.
SELECT run FROM config_records
WHERE list_contains($runs::VARCHAR[], run) AND kind = 'trainer_config' AND regexp_matches(document, 'true_on_policy|zero_train_gen_mismatch')
UNION
SELECT run FROM step_summaries
WHERE list_contains($runs::VARCHAR[], run) AND bits_compared > 0 AND bits_differing = 0
GROUP BY run
HAVING count(*) >= $steps

-- bits_claims: The newest configuration of the trainer of each of $runs (a list) that may claim bit equality. Grain: run. Input: config_records.
SELECT run, arg_max(document, time) AS document
FROM config_records
WHERE list_contains($runs::VARCHAR[], run) AND kind = 'trainer_config'
GROUP BY run
HAVING regexp_matches(arg_max(document, time), 'true_on_policy|zero_train_gen_mismatch')

-- bits_differing: Sequences of $step of $run with a token whose log-probs differ, in the order in which they were sampled, at most $count, without
-- those that only older weights sampled. Grain: sequence. `sequences`: of the step with a compared token; `others`: all with a differing one.
-- Inputs: training_sequences, statistics, the rollout record each was joined with.
SELECT t.sample_id, t.rank, t.segment_id, t.row, t.raw_kept, t.weight_version AS trainer_version, r.replica, s.n, s.n - s.n_zero_d AS differing,
       (SELECT count(*) FROM statistics AS a WHERE a.run = $run AND a.step = $step AND a.pair = 'backend' AND a.n > 0) AS sequences,
       count(*) OVER () AS others
FROM training_sequences AS t
JOIN statistics AS s ON s.run = $run AND s.step = $step AND s.pair = 'backend' AND s.segment_id = t.segment_id AND s.row = t.row
LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
WHERE t.run = $run AND t.step = $step AND s.n_zero_d < s.n
    AND NOT coalesce(len(r.spans) > 0 AND len(list_filter(r.spans, lambda a: coalesce(a."version" = t.weight_version, true))) = 0, false)
ORDER BY r.time NULLS LAST, t.segment_id, t.row
LIMIT $count

-- bits_newest: The newest sequence of $run with raw tokens of both sides. Grain: at most one row. Inputs: training_sequences.
SELECT step, segment_id, row
FROM training_sequences
WHERE run = $run AND raw_kept AND rollout_source IN ('received', 'joined') AND n_expected > 0
ORDER BY step DESC, segment_id, row
LIMIT 1

-- bits_steps: Counts of tokens for the test of bit equality, of each step of $runs (a list) that was computed until $until (null: of all).
-- Grain: run and step. Inputs: step_summaries, abandoned_steps.
SELECT s.run, s.step, s.tokens, coalesce(bits_compared, 0) AS compared, coalesce(bits_differing, 0) AS differing, coalesce(bits_unknown, 0) AS "unknown",
       coalesce(older_compared, 0) AS older, coalesce(older_differing, 0) AS older_differing
FROM step_summaries AS s ANTI JOIN abandoned_steps USING (run, step)
WHERE list_contains($runs::VARCHAR[], s.run) AND computed_at <= coalesce($until::TIMESTAMPTZ, computed_at)
ORDER BY s.run, s.step
