-- Segments of a run with sequences. Grain: segment. Inputs: segments. Parameters: $run.
SELECT segment_id, kind, rows FROM segments
WHERE run = $run AND kind IN ('training', 'rollout', 'statistics') ORDER BY segment_id
