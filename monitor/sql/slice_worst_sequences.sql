-- The worst sequences of each step $first to $last of $run (both included; null: no bound) for the pair $pair, at most $count a step
-- and those of the sample $sample (null: none):
-- first those with broken tokens, then by what they add to the step's K3. Grain: step and sequence. `share`: part of the
-- step's Σ k3. `of_sample`: the step was folded, and only the sample of its sequences is there to choose from (of the pair "backend");
-- `place` and `share` are those among all of its sequences. Inputs: statistics, training_sequences, the rollout record each was
-- joined with (rollout_sequences); of folded steps sampled_sequences and folded_pairs.
WITH measured AS (
    SELECT *, n_expected - n AS broken,
           row_number() OVER (PARTITION BY step ORDER BY n < n_expected DESC, sum_k3 DESC, segment_id, row) AS place,
           sum(sum_k3) OVER (PARTITION BY step) AS step_k3
    FROM statistics
    WHERE run = $run AND pair = $pair AND step NOT IN (SELECT step FROM folded_steps WHERE run = $run)
        AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
)
SELECT
    m.step, m.place, t.sample_id, t.group_id, m.n AS tokens, m.broken, t.n_total,
    m.sum_k3 / nullif(m.n, 0) AS k3_kl, m.sum_k3 / nullif(m.step_k3, 0) AS share,
    m.sum_abs_d / nullif(m.n, 0) AS logprob_abs_diff_mean, m.sum_d / nullif(m.n, 0) AS log_ratio_mean,
    CASE WHEN m.n > 0 THEN m.min_d END AS log_ratio_min, CASE WHEN m.n > 0 THEN m.max_d END AS log_ratio_max,
    t.reward, t.rank, r.replica, t.weight_version AS trainer_weight_version, known_versions(r.spans, t.rollout_versions, t.alignment) AS spans, r.cached_prefix_tokens, r.finish_reason,
    t.rollout_source, t.alignment, t.tags, t.raw_kept, t.segment_id, t.row, false AS of_sample
FROM measured AS m
JOIN training_sequences AS t ON t.run = $run AND t.step = m.step AND t.segment_id = m.segment_id AND t.row = m.row
LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
WHERE m.place <= $count OR t.sample_id = $sample
UNION ALL BY NAME
SELECT
    m.step, m.place, m.sample_id, m.group_id, m.n AS tokens, m.broken, m.n_total,
    m.sum_k3 / nullif(m.n, 0) AS k3_kl, m.sum_k3 / nullif(p.sum_k3, 0) AS share,
    m.sum_abs_d / nullif(m.n, 0) AS logprob_abs_diff_mean, m.sum_d / nullif(m.n, 0) AS log_ratio_mean,
    CASE WHEN m.n > 0 THEN m.min_d END AS log_ratio_min, CASE WHEN m.n > 0 THEN m.max_d END AS log_ratio_max,
    m.reward, m.rank, m.replica, m.weight_version AS trainer_weight_version, m.spans, m.cached_prefix_tokens, m.finish_reason,
    m.rollout_source, m.alignment, m.tags, m.raw_kept, m.segment_id, m.row, true AS of_sample
FROM sampled_sequences AS m
JOIN folded_pairs AS p ON p.run = $run AND p.step = m.step AND p.pair = 'backend'
WHERE m.run = $run AND $pair = 'backend' AND m.n IS NOT NULL
    AND m.step >= coalesce($first::BIGINT, m.step) AND m.step <= coalesce($last::BIGINT, m.step)
    AND (m.place <= $count OR m.sample_id = $sample)
ORDER BY step, place
