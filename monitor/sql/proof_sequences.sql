-- Sequences of $run, of $step alone unless it is null, that can be scored again: their prompt was recorded and their raw tokens are kept. Newest steps first, at most $most.
-- Grain: training record of one engine request. Inputs: training_sequences, rollout_sequences, raw_training_in (the run's files), raw_rollout_in (the run's files), config_records.
WITH prompts AS (
    SELECT prompt_hash, any_value(prompt_token_ids) AS prompt_ids
    FROM raw_rollout_in($rollout_files)
    WHERE run = $run AND prompt_token_ids IS NOT NULL
    GROUP BY prompt_hash
),
sampling AS (
    SELECT fingerprint, any_value(document) AS document
    FROM config_records
    WHERE run = $run AND kind = 'sampling_params'
    GROUP BY fingerprint
)
SELECT
    s.step, s.sample_id, p.prompt_ids, o.token_ids AS response_ids, o.logprobs AS engine_logprobs, t.rollout_logprobs, t.trainer_logprobs,
    t.mask, s.alignment, engine_spans(r.spans, r.decisions, r.clock_offset, s.time) AS spans, s.weight_version AS trainer_version, c.document AS sampling, r.engine_config_id, r.replica
FROM training_sequences AS s
JOIN rollout_sequences AS r ON r.segment_id = s.rollout_segment AND r.row = s.rollout_row AND r.run = s.run
JOIN prompts AS p ON p.prompt_hash = r.prompt_hash
JOIN raw_rollout_in($rollout_files) AS o ON o.segment_id = s.rollout_segment AND o.row = s.rollout_row AND o.run = s.run
JOIN raw_training_in($training_files) AS t ON t.segment_id = s.segment_id AND t.row = s.row AND t.run = s.run AND t.step = s.step
LEFT JOIN sampling AS c ON c.fingerprint = r.sampling_id
WHERE s.run = $run AND ($step::BIGINT IS NULL OR s.step = $step::BIGINT) AND s.alignment IN ('all', 'masked') AND len(o.token_ids) > 0 AND r.adapter IS NULL
ORDER BY s.step DESC, s.sample_id
LIMIT $most
