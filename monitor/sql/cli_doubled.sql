-- Sequences of a run that are in the store more than once. Grain: one row, or none. Inputs: doubled.
-- Parameters: $run. `tokens`: masked ones included.
SELECT run, coalesce(sum(sequences) FILTER (kind <> 'rollout'), 0)::BIGINT AS sequences,
       coalesce(sum(tokens) FILTER (kind <> 'rollout'), 0)::BIGINT AS tokens,
       coalesce(sum(sequences) FILTER (kind = 'rollout'), 0)::BIGINT AS rollouts,
       min(first_step) AS first_step, max(last_step) AS last_step, count(*) AS segments, min_by(example, found_at) AS example,
       min_by(segment_id, found_at) AS segment_id, min_by(first_in, found_at) AS first_in, min(found_at) AS found_at
FROM doubled WHERE run = $run GROUP BY run
