-- What the verdict "identical" stands on. Grain: run and step of $runs, each between its numbers in $first and $last (both included; null: no bound). `n`: valid tokens, `zero`: those with a log-ratio of exactly 0,
-- `independent`: sequences whose two log-probs the collectors saw where they were computed: r at the engine, t at the trainer.
-- `blank`: those of sequences in which every log-prob is exactly 0 on both sides; of frozen steps, where that holds for the whole step.
-- Inputs: training_sequences, statistics of the pair "backend"; of frozen steps frozen_steps and step_summaries.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
), parts AS (
    SELECT
        t.run, t.step, t.n_expected, s.n, s.n_zero_d AS zero, 1 AS sequences,
        (t.rollout_source = 'joined' OR t.received_max_abs_diff IS NOT NULL)::INTEGER AS independent,
        CASE WHEN s.sum_behaviour2 = 0 AND s.sum_policy2 = 0 THEN s.n END AS blank
    FROM training_sequences AS t
    JOIN asked AS a ON a.run = t.run AND t.step >= coalesce(a.first, t.step) AND t.step <= coalesce(a.last, t.step)
    LEFT JOIN statistics AS s
        ON s.run = t.run AND s.step = t.step AND s.segment_id = t.segment_id AND s.row = t.row AND s.pair = 'backend'
    WHERE t.n_expected > 0
    UNION ALL
    SELECT t.run, step, tokens, NULL, NULL, with_tokens, independent, NULL
    FROM frozen_steps AS t
    JOIN asked AS a ON a.run = t.run AND t.step >= coalesce(a.first, t.step) AND t.step <= coalesce(a.last, t.step)
    WHERE with_tokens > 0
    UNION ALL
    SELECT t.run, step, 0, n, n_zero_d, 0, 0, CASE WHEN sum_behaviour2 = 0 AND sum_policy2 = 0 THEN n END
    FROM (SELECT run, step, unnest(pairs, max_depth := 2) FROM step_summaries SEMI JOIN frozen_steps USING (run, step)) AS t
    JOIN asked AS a ON a.run = t.run AND t.step >= coalesce(a.first, t.step) AND t.step <= coalesce(a.last, t.step)
    WHERE pair = 'backend' AND n_expected > 0
)
SELECT run, step, sum(n_expected)::BIGINT AS n_expected, coalesce(sum(n), 0)::BIGINT AS n, coalesce(sum(zero), 0)::BIGINT AS zero,
       sum(sequences)::BIGINT AS sequences, sum(independent)::BIGINT AS independent, coalesce(sum(blank), 0)::BIGINT AS blank
FROM parts
GROUP BY run, step
ORDER BY run, step
