-- app_tokens_corrections: What the trainer said it applied in one step. Grain: record of a rank or micro-batch that says so. Inputs: step_records.
SELECT rank, correction FROM step_records WHERE run = $run AND step = $step AND correction IS NOT NULL ORDER BY rank, time

-- app_tokens_sequence: The raw tokens of one training record. Grain: token, masked ones included. Inputs: tokens_in (the run's files). Parameters: $run, $step,
-- $segment, $row: the record's key; they reach the Parquet files, so that only row groups that may hold it are read.
SELECT position, token_id, mask, rollout_logprob, trainer_logprob, current_logprob, reference_logprob, teacher_logprob, entropy, advantage, weight_version
FROM tokens_in($training_files, $rollout_files)
WHERE run = $run AND step = $step AND segment_id = $segment AND row = $row
ORDER BY position

-- app_tokens_sides: Where the rollout log-probs of one step's sequences come from, and how the records fit. Grain: source and alignment.
-- Inputs: training_sequences, segments; of a frozen step step_summaries, without source and alignment. Parameters: $run, $step. `kept`: sequences
-- whose raw tokens are still there; `reduced`: that were recorded as statistics only, and never had any here. `frozen_at`: null: it is not.
SELECT t.rollout_source, t.alignment, count(*) AS sequences, count(*) FILTER (t.raw_kept) AS kept,
       count(*) FILTER (g.kind = 'statistics') AS reduced, NULL::TIMESTAMPTZ AS frozen_at
FROM training_sequences AS t LEFT JOIN segments AS g USING (segment_id)
WHERE t.run = $run AND t.step = $step
GROUP BY t.rollout_source, t.alignment
UNION ALL
SELECT NULL, NULL, sequences, 0, 0, frozen_at FROM step_summaries WHERE run = $run AND step = $step AND frozen_at IS NOT NULL
ORDER BY sequences DESC, rollout_source, alignment

-- app_tokens_steps: Steps of $run as places to look for tokens. Grain: step. Inputs: step_summaries, step_metrics, training_sequences. Parameters: $run,
-- $pair. `k3_kl`, `broken` (tokens) of the pair, null where not measured; `kept`: sequences whose raw tokens are still there.
WITH measured AS (
    SELECT step, any_value(value) FILTER (metric = $pair || '.k3_kl') AS k3_kl,
           sum(value) FILTER (metric <> $pair || '.k3_kl')::BIGINT AS broken
    FROM step_metrics
    WHERE run = $run AND metric IN ($pair || '.k3_kl', $pair || '.nonfinite_tokens', $pair || '.impossible_tokens')
    GROUP BY step
),
kept AS (
    SELECT step, count(*) FILTER (raw_kept) AS kept FROM training_sequences WHERE run = $run GROUP BY step
)
SELECT s.step, m.k3_kl, m.broken, coalesce(k.kept, 0) AS kept
FROM step_summaries AS s LEFT JOIN measured AS m USING (step) LEFT JOIN kept AS k USING (step)
WHERE s.run = $run
ORDER BY s.step

-- app_tokens_sequences: The $count worst sequences of one step for the pair $pair, then $others of those without statistics of it, and those of the
-- sample $sample (null: none). First those with broken tokens, then by what they add to the step's K3. Grain: sequence. `share`: part of the step's Σ k3.
-- Inputs: training_sequences, statistics, the rollout record each was joined with.
WITH ranked AS (
    SELECT t.*, s.n, s.n_expected - s.n AS broken, s.sum_k3, s.sum_d, s.min_d, s.max_d, sum(s.sum_k3) OVER () AS step_k3,
           row_number() OVER (PARTITION BY s.n IS NULL ORDER BY s.n < s.n_expected DESC, s.sum_k3 DESC, t.segment_id, t.row) AS place
    FROM training_sequences AS t
    LEFT JOIN statistics AS s
        ON s.run = $run AND s.step = $step AND s.pair = $pair AND s.segment_id = t.segment_id AND s.row = t.row
    WHERE t.run = $run AND t.step = $step
)
SELECT
    t.sample_id, t.group_id, coalesce(t.n, t.n_expected) AS tokens, t.broken, t.n_total,
    t.sum_k3 / nullif(t.n, 0) AS k3_kl, t.sum_k3 / nullif(t.step_k3, 0) AS share,
    t.sum_d / nullif(t.n, 0) AS log_ratio_mean,
    CASE WHEN t.n > 0 THEN t.min_d END AS log_ratio_min, CASE WHEN t.n > 0 THEN t.max_d END AS log_ratio_max,
    t.reward, t.rank, r.replica, t.weight_version AS trainer_weight_version,
    known_versions(engine_spans(r.spans, r.decisions, r.clock_offset, t.time), t.pieces) AS spans, r.cached_prefix_tokens, r.finish_reason,
    t.rollout_source, t.alignment, t.tags, t.raw_kept, t.segment_id, t.row
FROM ranked AS t
LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
WHERE t.place <= CASE WHEN t.n IS NULL THEN $others ELSE $count END OR t.sample_id = $sample
ORDER BY t.n IS NULL, t.place
