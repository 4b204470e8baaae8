-- The backend gap of each step of $run with training records from $first to $last (both included; null: no bound), and where r came from.
-- Grain: step. `update`, `reference`: K3 of those pairs; null: not measured. Inputs: step_summaries, abandoned_steps.
WITH chosen AS (
    SELECT s.*, list_filter(pairs, lambda p: p.pair = 'backend')[1] AS backend, list_filter(pairs, lambda p: p.pair = 'update' AND p.n > 0)[1] AS renewed,
           list_filter(pairs, lambda p: p.pair = 'reference' AND p.n > 0)[1] AS referred
    FROM step_summaries AS s
    ANTI JOIN abandoned_steps AS a ON a.run = s.run AND a.step = s.step
    WHERE s.run = $run AND s.sequences > 0 AND s.step >= coalesce($first::BIGINT, s.step) AND s.step <= coalesce($last::BIGINT, s.step)
)
SELECT
    t.step, coalesce(backend.compared, 0) AS compared, t.tokens AS n_expected, coalesce(backend.n, 0) AS n, coalesce(backend.n_expected, 0) AS n_compared,
    backend.sum_abs_d AS abs_d, backend.sum_k3 AS k3, backend.sum_ratio_m1 AS ratio_m1,
    backend.sum_policy AS t, backend.sum_behaviour AS r, backend.sum_policy2 AS t2, backend.sum_behaviour2 AS r2, backend.sum_policy_behaviour AS tr,
    coalesce(backend.n_positive_d, 0) AS n_up, coalesce(backend.n_negative_d, 0) AS n_down, coalesce(backend.n_zero_d, 0) AS n_same,
    coalesce(backend.n_nonfinite_behaviour, 0) AS nonfinite_rollout, coalesce(backend.n_nonfinite_policy, 0) AS nonfinite_trainer,
    coalesce(backend.n_sentinel_behaviour + backend.n_sentinel_policy, 0) AS sentinel,
    coalesce(backend.n_positive_behaviour, 0) AS positive_rollout,
    coalesce(backend.n_zero_behaviour, 0) AS zero_rollout, coalesce(backend.n_zero_policy, 0) AS zero_trainer,
    backend.c_nn, backend.c_aa, backend.c_an, backend.c_qq, backend.c_qn, renewed.sum_k3 / renewed.n AS update, referred.sum_k3 / referred.n AS reference,
    if(t.missing IS NULL, 0, t.sequences) AS sequences, if(t.missing IS NULL, 0, t.tokens) AS tokens,
    coalesce(t.received, 0) AS received, coalesce(t.seen, 0) AS seen, coalesce(t.missing, 0) AS missing,
    coalesce(t.missing_tokens, 0) AS missing_tokens, coalesce(t.unseen, 0) AS unseen, coalesce(t.unseen_tokens, 0) AS unseen_tokens,
    coalesce(t.unaligned, 0) AS unaligned, coalesce(t.other_ids, 0) AS other_ids, coalesce(t.routed, 0) AS routed,
    coalesce(t.versions_compared, 0) AS versions_compared, coalesce(t.versions_differing, 0) AS versions_differing, coalesce(t.engine_older, 0) AS engine_older,
    coalesce(t.engine_newer, 0) AS engine_newer, coalesce(t.grouped, 0) AS grouped, coalesce(t.copies, 0) AS copies
FROM chosen AS t
ORDER BY t.step
