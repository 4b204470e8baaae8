-- Finished sequences of $run that were sampled by version $version alone and whose prompt was recorded, the newest first, at most
-- $most; after $after (null: all), of $replica (null: any). Grain: engine request.
-- Inputs: rollout_sequences, raw_rollout_in (the run's files that are on the disk: what the engine sampled lately), config_records.
WITH prompts AS (
    SELECT prompt_hash, any_value(prompt_token_ids) AS prompt_ids
    FROM raw_rollout_in($local_rollout_files)
    WHERE run = $run AND prompt_token_ids IS NOT NULL
    GROUP BY prompt_hash
),
chosen AS (
    SELECT r.*, p.prompt_ids
    FROM rollout_sequences AS r JOIN prompts AS p USING (prompt_hash)
    WHERE r.run = $run AND r.adapter IS NULL AND r.parts IS NULL AND r.n_tokens > 0 AND len(r.spans) = 1 AND r.spans[1].version = $version
      AND ($after::TIMESTAMPTZ IS NULL OR r.time > $after::TIMESTAMPTZ) AND ($replica::VARCHAR IS NULL OR r.replica = $replica::VARCHAR)
    ORDER BY r.time DESC, r.sample_id
    LIMIT $most
),
documents AS (
    SELECT fingerprint, any_value(document) AS document FROM config_records WHERE run = $run GROUP BY fingerprint
)
SELECT
    c.sample_id, c.time, c.replica, c.cached_prefix_tokens, c.prompt_ids, o.token_ids AS response_ids, o.logprobs,
    s.document AS sampling, e.document ->> '$.summary.logprobs_mode' AS logprobs_mode
FROM chosen AS c
JOIN raw_rollout_in($local_rollout_files) AS o ON o.run = c.run AND o.segment_id = c.segment_id AND o.row = c.row
LEFT JOIN documents AS s ON s.fingerprint = c.sampling_id
LEFT JOIN documents AS e ON e.fingerprint = c.engine_config_id
WHERE o.run = $run
ORDER BY c.time DESC, c.sample_id
