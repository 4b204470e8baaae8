-- A sample of raw tokens of $run: the sequences of $steps whose group falls into one of $parts equal parts (so answers to one prompt stay together). Grain: token, masked-out ones
-- included, in the order of their sequence. Columns of the sequence alone (rank, finish_reason, prompt_length, tags) are null but at its first token. Inputs: tokens_in (the run's files), training_sequences, the rollout record each was joined with.
WITH chosen AS (
    SELECT row_number() OVER (ORDER BY t.step, t.segment_id, t.row) AS sequence, t.segment_id, t.row, r.replica, r.cached_prefix_tokens,
        r.prompt_hash, t.rank, r.finish_reason, r.prompt_length, t.tags
    FROM training_sequences AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run AND t.step IN (SELECT unnest($steps)) AND hash(coalesce(t.group_id, r.prompt_hash, t.sample_id)) % $parts = 0 AND t.raw_kept
        AND (t.rollout_source <> 'missing' OR t.rollout_segment IS NOT NULL)  -- else nothing to compare with, yet or ever
)
SELECT
    c.sequence, k.step, k.token_id, k.mask, k.rollout_logprob AS r, k.trainer_logprob AS t, k.broken IS NOT NULL AS broken,
    k.entropy, k.weight_version, k.trainer_weight_version, k.group_id,
    c.replica, c.cached_prefix_tokens, c.prompt_hash,
    if(k.position = 0, c.rank, NULL) AS rank, if(k.position = 0, c.finish_reason, NULL) AS finish_reason,
    if(k.position = 0, c.prompt_length, NULL) AS prompt_length, if(k.position = 0, c.tags, NULL) AS tags
FROM tokens_in($training_files, $rollout_files, parts := $parts) AS k
JOIN chosen AS c ON c.segment_id = k.segment_id AND c.row = k.row
WHERE k.run = $run AND k.step BETWEEN list_min($steps) AND list_max($steps) AND k.step IN (SELECT unnest($steps))
ORDER BY c.sequence, k.position
