-- The raw tokens of one training record. Grain: token, masked ones included. Inputs: the view tokens. Parameters: $run, $step,
-- $segment, $row: the record's key; they reach the Parquet files, so that only row groups that may hold it are read.
SELECT position, token_id, mask, rollout_logprob, trainer_logprob, current_logprob, entropy, advantage, weight_version
FROM tokens
WHERE run = $run AND step = $step AND segment_id = $segment AND row = $row
ORDER BY position
