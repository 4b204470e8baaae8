-- The tokens of one step, masked ones included. Grain: token. Inputs: tokens_in (the run's files). Parameters: $run, $step.
SELECT * EXCLUDE (segment_id, row) FROM tokens_in($training_files, $rollout_files, $sampled_from, $sampled_to) WHERE run = $run AND step = $step ORDER BY sample_id, segment_id, row, position
