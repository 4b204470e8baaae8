-- Token lists of training records, with the engine's where r comes from there. Grain: one row per row of incoming (Arrow:
-- number, keys of both records), in its order. Inputs: incoming, rollout_sequences, raw Parquet files $training_files and $rollout_files.
SELECT i.number, t.token_ids, t.mask, t.rollout_logprobs, t.trainer_logprobs, t.current_logprobs, t.reference_logprobs,
       -- A sequence of several parts has its log-probs in the places of the tokens under the mask.
       coalesce(o.token_ids, CASE WHEN r.parts IS NOT NULL THEN list_where(
           t.token_ids, coalesce(t.mask, list_transform(t.token_ids, lambda id: true))
       ) END) AS rollout_token_ids,
       coalesce(o.logprobs, r.logprobs) AS logprobs
FROM incoming AS i
JOIN read_parquet($training_files, union_by_name = true, hive_partitioning = false) AS t
    ON t.segment_id = i.segment_id AND t.row = i.row
LEFT JOIN rollout_sequences AS r ON r.segment_id = i.rollout_segment AND r.row = i.rollout_row AND r.parts IS NOT NULL
LEFT JOIN read_parquet($rollout_files, union_by_name = true, hive_partitioning = false) AS o
    ON o.segment_id = i.rollout_segment AND o.row = i.rollout_row
ORDER BY i.number
