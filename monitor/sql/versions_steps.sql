-- Times of the steps of rollout records. Grain: one row per row of incoming (Arrow: number, segment_id, row), in its order.
-- Inputs: incoming, raw Parquet files $files.
SELECT i.number, o.step_times
FROM incoming AS i
JOIN read_parquet($files, union_by_name = true, hive_partitioning = false) AS o ON o.segment_id = i.segment_id AND o.row = i.row
ORDER BY i.number
