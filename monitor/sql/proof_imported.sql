-- Training records of $run, of $step alone unless it is null, that hold the prompt before what the mask leaves, as imported ones do. Newest steps first, at most $most.
-- Grain: training record. Inputs: training_sequences, raw_training_in (the run's files).
SELECT s.step, s.sample_id, t.token_ids, t.mask, t.rollout_logprobs, t.trainer_logprobs, s.weight_version
FROM training_sequences AS s
JOIN raw_training_in($training_files) AS t ON t.segment_id = s.segment_id AND t.row = s.row AND t.run = s.run AND t.step = s.step
WHERE s.run = $run AND ($step::BIGINT IS NULL OR s.step = $step::BIGINT) AND t.mask IS NOT NULL AND NOT t.mask[1] AND list_contains(t.mask, true)
ORDER BY s.step DESC, s.sample_id
LIMIT $most
