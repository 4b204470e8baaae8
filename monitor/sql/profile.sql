-- profile_due: Steps that were computed again since they were profiled, the oldest first. Grain: run and step, at most $steps, and no more than
-- reach $tokens together. `profiled`: tokens of the profile there is (0: none). Inputs: step_summaries.
-- Parameters: $steps, $tokens, $resting (runs that are left alone for now).
SELECT run, step, revision, coalesce(profiled_tokens, 0) AS profiled
FROM step_summaries AS s
WHERE (s.profiled IS NULL OR s.profiled < revision) AND frozen_at IS NULL AND NOT list_contains($resting, run)
QUALIFY sum(tokens) OVER (ORDER BY run, step) - tokens < $tokens
ORDER BY run, step
LIMIT $steps

-- profile_done: Notes which state of steps was profiled. Grain: run and step. Inputs: incoming (Arrow: run, step, revision, tokens).
UPDATE step_summaries AS s SET profiled = i.revision, profiled_tokens = i.tokens FROM incoming AS i WHERE s.run = i.run AND s.step = i.step

-- profile_read: A profile of the steps $first to $last of $run for the pair $pair. Grain: bucket, null: broken tokens, which have no means. Inputs: profiles;
-- frozen steps have none.
SELECT
    bucket, sum(n)::BIGINT AS tokens,
    CASE WHEN bucket IS NOT NULL THEN sum(sum_abs_d) / sum(n) END AS logprob_abs_diff_mean,
    CASE WHEN bucket IS NOT NULL THEN sum(sum_d) / sum(n) END AS log_ratio_mean,
    CASE WHEN bucket IS NOT NULL THEN sum(sum_k3) / sum(n) END AS k3_kl
FROM profiles
WHERE run = $run AND pair = $pair AND dimension = $dimension AND step BETWEEN $first AND $last
GROUP BY bucket
ORDER BY bucket NULLS LAST

-- profile_parts: Log-probs of sequences of several requests, in the places of the tokens under the mask. Grain: one row per row of incoming (Arrow:
-- number, segment_id, row) that is one. Inputs: incoming, rollout_sequences.
SELECT i.number, r.logprobs
FROM incoming AS i JOIN rollout_sequences AS r ON r.segment_id = i.segment_id AND r.row = i.row
WHERE r.parts IS NOT NULL

-- profile_sequences: Where the raw tokens of training sequences lie. Grain: one row per training record of the steps of incoming (Arrow: run, step, place) whose
-- tokens are kept; the rollout record only where r has to come from it and its tokens are kept. Inputs: incoming, training_sequences, segments.
SELECT
    i.place, s.segment_id, s.row, s.n_total,
    CASE WHEN o.raw_file IS NOT NULL OR s.joined_by = 'parts' THEN s.rollout_segment END AS rollout_segment,
    CASE WHEN o.raw_file IS NOT NULL OR s.joined_by = 'parts' THEN s.rollout_row END AS rollout_row
FROM incoming AS i
JOIN training_sequences AS s ON s.run = i.run AND s.step = i.step
JOIN segments AS t ON t.segment_id = s.segment_id
LEFT JOIN segments AS o ON o.segment_id = s.rollout_segment AND s.rollout_source = 'joined'
WHERE t.raw_file IS NOT NULL
ORDER BY i.place, s.segment_id, s.row
