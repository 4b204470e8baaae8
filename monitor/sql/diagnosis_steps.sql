-- The backend gap of each step $first to $last of $run (both included; null: no bound) from statistics. Grain: step. The columns
-- `c_*` are sums over sequences of products of their sums: what a standard error clustered by sequence needs.
-- Inputs: training_sequences, statistics of the pair "backend".
SELECT
    t.step,
    count(*) AS sequences,
    count(s.n) AS compared,
    sum(t.n_expected)::BIGINT AS n_expected,
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
    sum(s.n::DOUBLE * s.n) AS c_nn,
    sum(s.sum_d * s.sum_d) AS c_dd, sum(s.sum_d * s.n) AS c_dn,
    sum(s.sum_abs_d * s.sum_abs_d) AS c_aa, sum(s.sum_abs_d * s.n) AS c_an,
    sum(s.sum_ratio_m1 * s.sum_ratio_m1) AS c_qq, sum(s.sum_ratio_m1 * s.n) AS c_qn
FROM training_sequences AS t
LEFT JOIN statistics AS s
    ON s.run = $run AND s.step = t.step AND s.segment_id = t.segment_id AND s.row = t.row AND s.pair = 'backend'
WHERE t.run = $run AND t.step >= coalesce($first::BIGINT, t.step) AND t.step <= coalesce($last::BIGINT, t.step)
GROUP BY t.step
ORDER BY t.step
