-- The engine's log-probs of trained sequences, from rollout records in the object store. Grain: rollout record and step that trained on
-- it. Inputs: training_sequences, sampled_sequences, raw_rollout_in (the files).
SELECT DISTINCT ON (k.run, k.step, o.segment_id, o.row) k.run, k.step, o.segment_id, o.row, o.logprobs, o.spans
FROM (
    SELECT run, step, rollout_segment, rollout_row FROM training_sequences
    UNION ALL
    SELECT run, step, rollout_segment, rollout_row FROM sampled_sequences
) AS k
JOIN raw_rollout_in($files) AS o ON o.segment_id = k.rollout_segment AND o.row = k.rollout_row AND o.run = k.run
