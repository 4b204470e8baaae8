-- Both sides' token lists of matched records. Grain: one row per row of incoming (Arrow: number, keys of both records,
-- with_routes), in its order. Inputs: incoming, raw Parquet files $training_files and $rollout_files.
SELECT
    i.number, t.token_ids, t.mask, t.rollout_logprobs, t.trainer_logprobs, t.current_logprobs, t.advantages,
    CASE WHEN i.with_routes THEN t.routes END AS routes,
    o.token_ids AS rollout_token_ids, o.logprobs,
    CASE WHEN i.with_routes THEN o.routes END AS rollout_routes
FROM incoming AS i
JOIN read_parquet($training_files, union_by_name = true, hive_partitioning = false) AS t
    ON t.segment_id = i.segment_id AND t.row = i.row
JOIN read_parquet($rollout_files, union_by_name = true, hive_partitioning = false) AS o
    ON o.segment_id = i.rollout_segment AND o.row = i.rollout_row
ORDER BY i.number
