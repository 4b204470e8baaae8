-- The worst sequences of each step $first to $last of $run (both included; null: no bound) for the pair $pair, at most $count a step
-- and those of the sample $sample (null: none):
-- first those with broken tokens, then by what they add to the step's K3. Grain: step and sequence. `share`: part of the
-- step's Σ k3. Inputs: statistics, training_sequences, the rollout record each was joined with (rollout_sequences).
WITH measured AS (
    SELECT *, n_expected - n AS broken,
           row_number() OVER (PARTITION BY step ORDER BY n < n_expected DESC, sum_k3 DESC, segment_id, row) AS place,
           sum(sum_k3) OVER (PARTITION BY step) AS step_k3
    FROM statistics
    WHERE run = $run AND pair = $pair AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
)
SELECT
    m.step, m.place, t.sample_id, t.group_id, m.n AS tokens, m.broken, t.n_total,
    m.sum_k3 / nullif(m.n, 0) AS k3_kl, m.sum_k3 / nullif(m.step_k3, 0) AS share,
    m.sum_abs_d / nullif(m.n, 0) AS logprob_abs_diff_mean, m.sum_d / nullif(m.n, 0) AS log_ratio_mean,
    CASE WHEN m.n > 0 THEN m.min_d END AS log_ratio_min, CASE WHEN m.n > 0 THEN m.max_d END AS log_ratio_max,
    t.reward, t.rank, r.replica, t.weight_version AS trainer_weight_version,
    known_versions(engine_spans(r.spans, r.decisions, r.clock_offset, t.time), t.pieces) AS spans, r.cached_prefix_tokens, r.finish_reason,
    t.rollout_source, t.alignment, t.tags, t.raw_kept, t.segment_id, t.row
FROM measured AS m
JOIN training_sequences AS t ON t.run = $run AND t.step = m.step AND t.segment_id = m.segment_id AND t.row = m.row
LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
WHERE m.place <= $count OR t.sample_id = $sample
ORDER BY step, place
