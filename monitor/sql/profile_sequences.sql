-- Where the raw tokens of training sequences lie. Grain: one row per training record of the steps of incoming (Arrow: run, step, place) whose
-- tokens are kept; the rollout record only where r has to come from it and its tokens are kept. Inputs: incoming, training_sequences, segments.
SELECT
    i.place, s.segment_id, s.row, s.n_total, t.raw_file AS training_file,
    CASE WHEN o.raw_file IS NOT NULL OR s.joined_by = 'parts' THEN s.rollout_segment END AS rollout_segment,
    CASE WHEN o.raw_file IS NOT NULL OR s.joined_by = 'parts' THEN s.rollout_row END AS rollout_row,
    o.raw_file AS rollout_file
FROM incoming AS i
JOIN training_sequences AS s ON s.run = i.run AND s.step = i.step
JOIN segments AS t ON t.segment_id = s.segment_id
LEFT JOIN segments AS o ON o.segment_id = s.rollout_segment AND s.rollout_source = 'joined'
WHERE t.raw_file IS NOT NULL
ORDER BY i.place, s.segment_id, s.row
