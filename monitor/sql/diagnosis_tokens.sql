-- A sample of raw tokens of $run: the sequences of $steps whose group falls into one of $parts equal parts (so answers to one prompt stay together), with
-- their tokens as lists; `source`: log-probs of the rollout record that r comes from, by its own places. Grain: training record that has tokens, in
-- the order of steps. Inputs: raw_training_in and raw_rollout_in (the run's files), spooled_training and spooled_rollout (what waits for the archive; a
-- segment that the index has there is in no file), training_sequences, the rollout record each was joined with, segments, bad_rows.
WITH chosen AS (
    SELECT t.step, t.segment_id, t.row, t.rank, t.tags, t.group_id, t.weight_version, t.rollout_source, t.alignment, t.rollout_segment, t.rollout_row,
           r.replica, r.cached_prefix_tokens, r.prompt_hash, r.finish_reason, r.prompt_length, r.spans, r.logprobs
    FROM training_sequences AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run AND t.step IN (SELECT unnest($steps)) AND hash(coalesce(t.group_id, r.prompt_hash, t.sample_id)) % $parts = 0 AND t.raw_kept
        AND (t.rollout_source <> 'missing' OR t.rollout_segment IS NOT NULL)  -- else nothing to compare with, yet or ever
), spooled AS (
    SELECT segment_id FROM segments WHERE run = $run AND starts_with(raw_file, 'spool/')
), trained AS (
    SELECT segment_id, row, token_ids, mask, rollout_logprobs, trainer_logprobs, entropy, rollout_versions FROM raw_training_in($training_files)
    UNION ALL
    SELECT segment_id, row, token_ids, mask, rollout_logprobs, trainer_logprobs, entropy, rollout_versions
    FROM spooled_training SEMI JOIN spooled USING (segment_id) ANTI JOIN bad_rows USING (segment_id, row)
), sampled AS (
    SELECT segment_id, row, logprobs FROM raw_rollout_in($rollout_files)
    UNION ALL
    SELECT segment_id, row, logprobs FROM spooled_rollout SEMI JOIN spooled USING (segment_id) ANTI JOIN bad_rows USING (segment_id, row)
)
SELECT c.step, k.token_ids, k.mask, k.rollout_logprobs AS received, coalesce(o.logprobs, c.logprobs) AS source, k.trainer_logprobs AS t, k.entropy,
       k.rollout_versions AS stated, c.* EXCLUDE (step, segment_id, row, rollout_segment, rollout_row, logprobs)
FROM trained AS k
JOIN chosen AS c ON c.segment_id = k.segment_id AND c.row = k.row
LEFT JOIN sampled AS o ON c.rollout_source = 'joined' AND o.segment_id = c.rollout_segment AND o.row = c.rollout_row
WHERE len(k.token_ids) > 0
ORDER BY c.step, c.segment_id, c.row
