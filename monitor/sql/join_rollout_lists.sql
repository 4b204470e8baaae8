-- Token lists of rollout records. Grain: one row per row of incoming (Arrow: number, rollout_segment, rollout_row), in its order.
-- Inputs: incoming, raw Parquet files $rollout_files.
SELECT i.number, o.token_ids, o.logprobs
FROM incoming AS i
JOIN read_parquet($rollout_files, union_by_name = true, hive_partitioning = false) AS o
    ON o.segment_id = i.rollout_segment AND o.row = i.rollout_row
ORDER BY i.number
