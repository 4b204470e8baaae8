-- Where the raw tokens of training sequences lie. Grain: one row per training record of the steps $steps of $run whose tokens are
-- kept; the rollout record only where r has to come from it and its tokens are kept. Inputs: training_sequences, segments.
SELECT
    s.step, s.segment_id, s.row, s.n_total, t.raw_file AS training_file,
    CASE WHEN o.raw_file IS NOT NULL OR s.joined_by = 'parts' THEN s.rollout_segment END AS rollout_segment,
    CASE WHEN o.raw_file IS NOT NULL OR s.joined_by = 'parts' THEN s.rollout_row END AS rollout_row,
    o.raw_file AS rollout_file
FROM training_sequences AS s
JOIN segments AS t ON t.segment_id = s.segment_id
LEFT JOIN segments AS o ON o.segment_id = s.rollout_segment AND s.rollout_source = 'joined'
WHERE s.run = $run AND s.step BETWEEN list_min($steps) AND list_max($steps) AND s.step IN (SELECT unnest($steps))
    AND t.raw_file IS NOT NULL
ORDER BY s.step, s.segment_id, s.row
