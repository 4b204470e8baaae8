-- Grain: one row per training record. Inputs: incoming (Arrow): reduced training records, or statistics records of a collector.
INSERT INTO training_sequences BY NAME
SELECT
    run, step, rank, sample_id, segment_id, row, group_id, time, n_total, n_expected, reward, advantage_abs_sum, entropy_sum,
    entropy_n, weight_version, token_hash, rollout_source, tags, route_layers, part_ids, rollout_versions, raw_kept
FROM incoming
