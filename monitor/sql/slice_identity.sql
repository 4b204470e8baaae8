-- What the verdict "identical" stands on. Grain: step of $run between $first and $last (both included; null: no bound). `n`: valid tokens, `zero`: those with a log-ratio of exactly 0,
-- `independent`: sequences whose two log-probs the collectors saw where they were computed: r at the engine, t at the trainer.
-- Inputs: training_sequences, statistics of the pair "backend".
SELECT
    t.step,
    sum(t.n_expected)::BIGINT AS n_expected,
    coalesce(sum(s.n), 0)::BIGINT AS n,
    coalesce(sum(s.n_zero_d), 0)::BIGINT AS zero,
    count(*) AS sequences,
    count(*) FILTER (t.rollout_source = 'joined' OR t.received_max_abs_diff IS NOT NULL) AS independent
FROM training_sequences AS t
LEFT JOIN statistics AS s
    ON s.run = $run AND s.step = t.step AND s.segment_id = t.segment_id AND s.row = t.row AND s.pair = 'backend'
WHERE t.run = $run AND t.n_expected > 0
  AND t.step >= coalesce($first::BIGINT, t.step) AND t.step <= coalesce($last::BIGINT, t.step)
GROUP BY t.step
ORDER BY t.step
