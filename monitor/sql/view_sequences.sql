-- What is known of each trained sequence. Grain: one row per training record.
-- Inputs: training_sequences, its rollout record (rollout_sequences), statistics of the pair "backend" (null: not measured).
SELECT
    s.run, s.step, s.rank, s.sample_id, s.group_id, s.time, s.n_total, s.n_expected, s.reward, s.advantage_abs_sum,
    s.entropy_sum, s.entropy_n, s.weight_version, s.rollout_source, s.alignment, s.joined_by, s.token_match, s.length_match,
    s.received_max_abs_diff, s.routes_match, s.routes_expected, s.routes_compared, s.routes_equal, s.tags, s.raw_kept,
    r.request_id, r.replica, r.adapter, r.adapter_id, r.time AS rollout_time, r.n_tokens AS rollout_tokens,
    known_versions(r.spans, s.rollout_versions, s.alignment) AS spans, version_source(r.spans, s.rollout_versions, s.alignment) AS version_source,
    s.rollout_versions, r.prompt_length, r.prompt_hash,
    r.cached_prefix_tokens, r.finish_reason, r.sampling_id, r.engine_config_id,
    b.* EXCLUDE (run, step, segment_id, row, pair, n_expected),
    r.parts, s.segment_id, s.row
FROM training_sequences AS s
LEFT JOIN rollout_sequences AS r ON r.segment_id = s.rollout_segment AND r.row = s.rollout_row AND r.run = s.run
LEFT JOIN statistics AS b
    ON b.segment_id = s.segment_id AND b.row = s.row AND b.pair = 'backend' AND b.run = s.run AND b.step = s.step
