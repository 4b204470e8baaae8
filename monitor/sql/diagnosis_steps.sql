-- The backend gap of each step of $runs with training records, of each run those from its place in $firsts to that in $lasts (both
-- included; null: no bound), and where r came from. Grain: run and step. `update`, `reference`: K3 of those pairs; null: not measured.
-- $lowest: the lowest of $firsts, or null. Inputs: step_summaries, step_pairs, abandoned_steps.
WITH wanted AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($firsts::BIGINT[]) AS first, unnest($lasts::BIGINT[]) AS last
), parts AS (
    SELECT * FROM step_pairs WHERE run IN (SELECT run FROM wanted) AND step >= coalesce($lowest::BIGINT, step)
), others AS (
    SELECT run, step, any_value(sum_k3 / n) FILTER (pair = 'update') AS update, any_value(sum_k3 / n) FILTER (pair = 'reference') AS reference
    FROM parts WHERE pair <> 'backend' AND n > 0 GROUP BY run, step
)
SELECT
    t.run, t.step, coalesce(s.compared, 0) AS compared, t.tokens AS n_expected, coalesce(s.n, 0) AS n, coalesce(s.n_expected, 0) AS n_compared,
    s.sum_abs_d AS abs_d, s.sum_k3 AS k3, s.sum_ratio_m1 AS ratio_m1,
    s.sum_policy AS t, s.sum_behaviour AS r, s.sum_policy2 AS t2, s.sum_behaviour2 AS r2, s.sum_policy_behaviour AS tr,
    coalesce(s.n_positive_d, 0) AS n_up, coalesce(s.n_negative_d, 0) AS n_down, coalesce(s.n_zero_d, 0) AS n_same,
    coalesce(s.n_nonfinite_behaviour, 0) AS nonfinite_rollout, coalesce(s.n_nonfinite_policy, 0) AS nonfinite_trainer,
    coalesce(s.n_sentinel_behaviour + s.n_sentinel_policy, 0) AS sentinel,
    coalesce(s.n_positive_behaviour, 0) AS positive_rollout,
    coalesce(s.n_zero_behaviour, 0) AS zero_rollout, coalesce(s.n_zero_policy, 0) AS zero_trainer,
    s.c_nn, s.c_aa, s.c_an, s.c_qq, s.c_qn, o.update, o.reference,
    if(t.missing IS NULL, 0, t.sequences) AS sequences, if(t.missing IS NULL, 0, t.tokens) AS tokens,
    coalesce(t.received, 0) AS received, coalesce(t.seen, 0) AS seen, coalesce(t.missing, 0) AS missing,
    coalesce(t.missing_tokens, 0) AS missing_tokens, coalesce(t.unseen, 0) AS unseen, coalesce(t.unseen_tokens, 0) AS unseen_tokens,
    coalesce(t.unaligned, 0) AS unaligned, coalesce(t.other_ids, 0) AS other_ids, coalesce(t.routed, 0) AS routed,
    coalesce(t.versions_compared, 0) AS versions_compared, coalesce(t.versions_differing, 0) AS versions_differing, coalesce(t.engine_older, 0) AS engine_older,
    coalesce(t.engine_newer, 0) AS engine_newer
FROM step_summaries AS t
JOIN wanted AS w ON w.run = t.run
ANTI JOIN abandoned_steps AS a ON a.run = t.run AND a.step = t.step
LEFT JOIN parts AS s ON s.run = t.run AND s.step = t.step AND s.pair = 'backend'
LEFT JOIN others AS o ON o.run = t.run AND o.step = t.step
WHERE t.sequences > 0 AND t.step >= coalesce($lowest::BIGINT, t.step) AND t.step >= coalesce(w.first, t.step) AND t.step <= coalesce(w.last, t.step)
ORDER BY t.run, t.step
