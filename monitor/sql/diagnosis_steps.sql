-- The backend gap of each step $first to $last of $run (both included; null: no bound) from statistics. Grain: step. The columns
-- `c_*` are sums over sequences of products of their sums: what a standard error clustered by sequence needs.
-- Inputs: training_sequences, statistics of the pair "backend"; of folded steps their sums, folded_joins and folded_pairs.
WITH trained AS (
    SELECT step, count(*) AS sequences, sum(n_expected)::BIGINT AS n_expected
    FROM training_sequences
    WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
    GROUP BY step
    UNION ALL
    SELECT step, sum(sequences)::BIGINT, sum(tokens)::BIGINT
    FROM folded_joins
    WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
    GROUP BY step
), steps AS (
    SELECT step, sum(sequences)::BIGINT AS sequences, sum(n_expected)::BIGINT AS n_expected FROM trained GROUP BY step
), parts AS (
    SELECT step, n, n_expected, sum_d, sum_d2, sum_abs_d, sum_k3, sum_ratio_m1, sum_policy, sum_behaviour, sum_policy2, sum_behaviour2,
           sum_policy_behaviour, min_d, max_d, n_positive_d, n_negative_d, n_zero_d, n_nonfinite_behaviour, n_nonfinite_policy,
           n_sentinel_behaviour, n_sentinel_policy, n_positive_behaviour, n_positive_policy, n_zero_behaviour, n_zero_policy, 1 AS compared,
           n::DOUBLE * n AS c_nn, sum_d * sum_d AS c_dd, sum_d * n AS c_dn, sum_abs_d * sum_abs_d AS c_aa, sum_abs_d * n AS c_an,
           sum_ratio_m1 * sum_ratio_m1 AS c_qq, sum_ratio_m1 * n AS c_qn
    FROM statistics
    WHERE run = $run AND pair = 'backend' AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
    UNION ALL
    SELECT step, n, n_expected, sum_d, sum_d2, sum_abs_d, sum_k3, sum_ratio_m1, sum_policy, sum_behaviour, sum_policy2, sum_behaviour2,
           sum_policy_behaviour, min_d, max_d, n_positive_d, n_negative_d, n_zero_d, n_nonfinite_behaviour, n_nonfinite_policy,
           n_sentinel_behaviour, n_sentinel_policy, n_positive_behaviour, n_positive_policy, n_zero_behaviour, n_zero_policy, sequences, c_nn, c_dd, c_dn, c_aa, c_an, c_qq, c_qn
    FROM folded_pairs
    WHERE run = $run AND pair = 'backend' AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
)
SELECT
    t.step,
    any_value(t.sequences) AS sequences,
    coalesce(sum(s.compared), 0)::BIGINT AS compared,
    any_value(t.n_expected) AS n_expected,
    coalesce(sum(s.n), 0)::BIGINT AS n,
    coalesce(sum(s.n_expected), 0)::BIGINT AS n_compared,
    sum(s.sum_d) AS d, sum(s.sum_d2) AS d2, sum(s.sum_abs_d) AS abs_d, sum(s.sum_k3) AS k3, sum(s.sum_ratio_m1) AS ratio_m1,
    sum(s.sum_policy) AS t, sum(s.sum_behaviour) AS r, sum(s.sum_policy2) AS t2, sum(s.sum_behaviour2) AS r2,
    sum(s.sum_policy_behaviour) AS tr,
    min(s.min_d) FILTER (s.n > 0) AS min_d, max(s.max_d) FILTER (s.n > 0) AS max_d,
    coalesce(sum(s.n_positive_d), 0)::BIGINT AS n_up, coalesce(sum(s.n_negative_d), 0)::BIGINT AS n_down,
    coalesce(sum(s.n_zero_d), 0)::BIGINT AS n_same,
    coalesce(sum(s.n_nonfinite_behaviour), 0)::BIGINT AS nonfinite_rollout,
    coalesce(sum(s.n_nonfinite_policy), 0)::BIGINT AS nonfinite_trainer,
    coalesce(sum(s.n_sentinel_behaviour + s.n_sentinel_policy), 0)::BIGINT AS sentinel,
    coalesce(sum(s.n_positive_behaviour), 0)::BIGINT AS positive_rollout,
    coalesce(sum(s.n_positive_policy), 0)::BIGINT AS positive_trainer,
    coalesce(sum(s.n_zero_behaviour), 0)::BIGINT AS zero_rollout,
    coalesce(sum(s.n_zero_policy), 0)::BIGINT AS zero_trainer,
    sum(s.c_nn) AS c_nn, sum(s.c_dd) AS c_dd, sum(s.c_dn) AS c_dn, sum(s.c_aa) AS c_aa, sum(s.c_an) AS c_an,
    sum(s.c_qq) AS c_qq, sum(s.c_qn) AS c_qn
FROM steps AS t
ANTI JOIN (SELECT step FROM abandoned_steps WHERE run = $run) AS a ON a.step = t.step
LEFT JOIN parts AS s ON s.step = t.step
GROUP BY t.step
ORDER BY t.step
