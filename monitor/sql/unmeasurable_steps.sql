-- Steps of which not all raw tokens are on the disk: some were reduced before they came, removed, or moved to the object store; and
-- those trained on such rollouts. Grain: run. Inputs: segments, raw_files, training_sequences, sampled_sequences.
WITH gone AS (
    SELECT segment_id FROM segments LEFT JOIN raw_files ON path = raw_file
    WHERE segments.kind IN ('training', 'rollout', 'statistics') AND segments.rows > 0
        AND (raw_file IS NULL OR location IS NOT NULL)
), sequences AS (
    SELECT run, step, segment_id, rollout_segment FROM training_sequences
    UNION ALL SELECT run, step, segment_id, rollout_segment FROM sampled_sequences
)
SELECT run, min(step) AS first, max(step) AS last
FROM sequences
WHERE segment_id IN (FROM gone) OR rollout_segment IN (FROM gone)
GROUP BY run
