-- Raw records of some segments, as the collectors wrote them. Grain: sequence. Inputs: raw_training. Parameters: $run, $segments.
SELECT * EXCLUDE (run, segment_id, row) FROM raw_training
WHERE run = $run AND segment_id IN (SELECT unnest($segments::VARCHAR[])) ORDER BY segment_id, row
