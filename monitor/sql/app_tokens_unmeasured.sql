-- Sequences of one step without statistics of the pair $pair: at most $count of them, and those of the sample $sample (null: none).
-- Grain: sequence. Inputs: training_sequences, statistics, the rollout record each was joined with. Columns as in slice_worst_sequences.
SELECT
    t.step, t.sample_id, t.group_id, t.n_expected AS tokens, t.n_total, t.reward, t.rank, t.rollout_source, t.alignment, t.tags,
    r.replica, t.weight_version AS trainer_weight_version, known_versions(r.spans, t.rollout_versions, t.alignment) AS spans, r.cached_prefix_tokens, r.finish_reason, t.raw_kept,
    t.segment_id, t.row
FROM training_sequences AS t
ANTI JOIN statistics AS s
    ON s.run = $run AND s.step = $step AND s.pair = $pair AND s.segment_id = t.segment_id AND s.row = t.row
LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
WHERE t.run = $run AND t.step = $step
QUALIFY row_number() OVER (ORDER BY t.segment_id, t.row) <= $count OR t.sample_id = $sample
ORDER BY t.segment_id, t.row
