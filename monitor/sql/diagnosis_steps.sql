-- The backend gap of each step of $runs from statistics, of each run those from its place in $firsts to that in $lasts (both included;
-- null: no bound). Grain: run and step. The columns `c_*` are sums over sequences of products of their sums: what a standard error
-- clustered by sequence needs. $lowest: the lowest of $firsts, or null. Inputs: training_sequences, step_pairs; of frozen steps frozen_steps.
WITH wanted AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($firsts::BIGINT[]) AS first, unnest($lasts::BIGINT[]) AS last
), steps AS (
    SELECT s.run, s.step, sum(s.n_expected)::BIGINT AS n_expected
    FROM training_sequences AS s JOIN wanted AS w ON w.run = s.run
    WHERE s.step >= coalesce($lowest::BIGINT, s.step) AND s.step >= coalesce(w.first, s.step) AND s.step <= coalesce(w.last, s.step)
    GROUP BY s.run, s.step
    UNION ALL
    SELECT s.run, s.step, s.tokens
    FROM frozen_steps AS s JOIN wanted AS w ON w.run = s.run
    WHERE s.step >= coalesce(w.first, s.step) AND s.step <= coalesce(w.last, s.step)
), parts AS (
    SELECT * FROM step_pairs
    WHERE pair = 'backend' AND run IN (SELECT run FROM wanted) AND step >= coalesce($lowest::BIGINT, step)
)
SELECT
    t.run, t.step, coalesce(s.compared, 0) AS compared, t.n_expected, coalesce(s.n, 0) AS n, coalesce(s.n_expected, 0) AS n_compared,
    s.sum_abs_d AS abs_d, s.sum_k3 AS k3, s.sum_ratio_m1 AS ratio_m1,
    s.sum_policy AS t, s.sum_behaviour AS r, s.sum_policy2 AS t2, s.sum_behaviour2 AS r2, s.sum_policy_behaviour AS tr,
    coalesce(s.n_positive_d, 0) AS n_up, coalesce(s.n_negative_d, 0) AS n_down, coalesce(s.n_zero_d, 0) AS n_same,
    coalesce(s.n_nonfinite_behaviour, 0) AS nonfinite_rollout, coalesce(s.n_nonfinite_policy, 0) AS nonfinite_trainer,
    coalesce(s.n_sentinel_behaviour + s.n_sentinel_policy, 0) AS sentinel,
    coalesce(s.n_positive_behaviour, 0) AS positive_rollout,
    coalesce(s.n_zero_behaviour, 0) AS zero_rollout, coalesce(s.n_zero_policy, 0) AS zero_trainer,
    s.c_nn, s.c_aa, s.c_an, s.c_qq, s.c_qn
FROM steps AS t
ANTI JOIN abandoned_steps AS a ON a.run = t.run AND a.step = t.step
LEFT JOIN parts AS s ON s.run = t.run AND s.step = t.step
ORDER BY t.run, t.step
