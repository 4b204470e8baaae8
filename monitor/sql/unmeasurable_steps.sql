-- Steps of which not all raw tokens are on the disk: some were reduced before they came, removed, or moved to the object store; and
-- those trained on such rollouts. `lost_first`, `lost_last`: of which some are in neither place (null: none). Grain: run.
-- Inputs: segments, raw_files, training_sequences, sampled_sequences.
WITH gone AS (
    SELECT segment_id, location IS NULL AS lost FROM segments LEFT JOIN raw_files ON path = raw_file
    WHERE segments.kind IN ('training', 'rollout', 'statistics') AND segments.rows > 0
        AND (raw_file IS NULL OR location IS NOT NULL)
), sequences AS (
    SELECT run, step, segment_id, rollout_segment FROM training_sequences
    UNION ALL SELECT run, step, segment_id, rollout_segment FROM sampled_sequences
), incomplete AS (
    SELECT run, step, segment_id IN (SELECT segment_id FROM gone WHERE lost)
        OR coalesce(rollout_segment IN (SELECT segment_id FROM gone WHERE lost), false) AS lost
    FROM sequences
    WHERE segment_id IN (SELECT segment_id FROM gone) OR rollout_segment IN (SELECT segment_id FROM gone)
)
SELECT
    run, min(step) AS first, max(step) AS last,
    min(step) FILTER (WHERE lost) AS lost_first, max(step) FILTER (WHERE lost) AS lost_last
FROM incomplete
GROUP BY run
