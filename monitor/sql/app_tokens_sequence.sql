-- The raw tokens of one training record. Grain: token, masked ones included. Inputs: tokens_in (the run's files). Parameters: $run, $step,
-- $segment, $row: the record's key; they reach the Parquet files, so that only row groups that may hold it are read.
SELECT position, token_id, mask, rollout_logprob, trainer_logprob, current_logprob, reference_logprob, entropy, advantage, weight_version
FROM tokens_in($training_files, $rollout_files, $sampled_from, $sampled_to)
WHERE run = $run AND step = $step AND segment_id = $segment AND row = $row
ORDER BY position
