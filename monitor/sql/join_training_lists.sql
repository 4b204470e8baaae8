-- Token lists of training records. Grain: one row per row of incoming (Arrow: number, segment_id, row), in its order.
-- Inputs: incoming, raw Parquet files $training_files.
SELECT i.number, t.token_ids, t.mask, t.rollout_logprobs, t.trainer_logprobs, t.current_logprobs, t.advantages
FROM incoming AS i
JOIN read_parquet($training_files, union_by_name = true, hive_partitioning = false) AS t
    ON t.segment_id = i.segment_id AND t.row = i.row
ORDER BY i.number
