-- Steps of which not all raw tokens are on the disk: some were reduced before they came, or removed; and those trained on such rollouts.
-- Grain: run. Inputs: segments, training_sequences, sampled_sequences.
WITH gone AS (
    SELECT segment_id FROM segments
    WHERE kind IN ('training', 'rollout', 'statistics') AND rows > 0 AND raw_file IS NULL
), sequences AS (
    SELECT run, step, segment_id, rollout_segment FROM training_sequences
    UNION ALL SELECT run, step, segment_id, rollout_segment FROM sampled_sequences
)
SELECT run, min(step) AS first, max(step) AS last
FROM sequences
WHERE segment_id IN (SELECT segment_id FROM gone) OR rollout_segment IN (SELECT segment_id FROM gone)
GROUP BY run
