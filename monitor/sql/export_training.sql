-- Raw records of some segments, as the collectors wrote them. Grain: sequence. Inputs: raw_training_in (the run's files). Parameters: $run, $segments.
SELECT * EXCLUDE (run, segment_id, row) FROM raw_training_in($training_files)
WHERE run = $run AND segment_id IN (SELECT unnest($segments::VARCHAR[])) ORDER BY segment_id, row
