-- What each run lacks of the inputs that metrics need, as counts of sequences; and of its tokens under the mask, how many of them
-- are broken and how many have no pair of log-probs at all.
-- `raw_sampled`: statistics only because a recorder was told to keep raw tokens of a sample (raw_fraction), which loses nothing;
-- not part of `without_raw_tokens`.
-- Grain: run. Inputs: training_sequences, segments, rollout_sequences, statistics, health_records. Parameters: $run (null: all).
WITH reduced AS (
    SELECT t.run, count(*) AS sequences
    FROM training_sequences AS t JOIN segments AS s ON s.segment_id = t.segment_id AND s.kind = 'statistics'
    WHERE t.run = coalesce($run, t.run) GROUP BY t.run
), reasons AS (
    SELECT run, bool_or(event = 'raw_sampled') AS sampling,
           coalesce(sum(sequences) FILTER (event = 'raw_reduced'), 0) AS under_pressure
    FROM health_records WHERE run = coalesce($run, run) GROUP BY run
), chosen AS (
    SELECT run, greatest(sequences - under_pressure, 0)::BIGINT AS raw_sampled
    FROM reduced JOIN reasons USING (run) WHERE sampling
), trained AS (
    SELECT run, count(*) AS trained,
           count(*) FILTER (rollout_source = 'missing') AS without_rollout_logprobs,
           count(*) FILTER (rollout_source = 'unaligned') AS unaligned,
           count(*) FILTER (rollout_segment IS NULL) AS without_rollout_record,
           count(*) FILTER (weight_version IS NULL) AS without_trainer_version,
           count(*) FILTER (entropy_n IS NULL OR entropy_n = 0) AS without_entropy,
           count(*) FILTER (reward IS NULL) AS without_reward,
           count(*) FILTER (NOT raw_kept) AS without_raw_tokens,
           -- A sample may be trained on in several steps, but in one step it belongs once.
           count(*) - count(DISTINCT (step, sample_id)) AS repeated,
           sum(n_expected)::BIGINT AS tokens
    FROM training_sequences WHERE run = coalesce($run, run) GROUP BY run
), sampled AS (
    SELECT run, count(*) AS sampled,
           count(*) FILTER (len(list_filter(coalesce(spans, []), lambda span: span.version IS NOT NULL)) = 0)
               AS without_rollout_version
    FROM rollout_sequences WHERE run = coalesce($run, run) GROUP BY run
), measured AS (
    SELECT run,
           coalesce(sum(n) FILTER (pair = 'backend'), 0)::BIGINT AS measured_tokens,
           coalesce(sum(n_nonfinite_behaviour + n_nonfinite_policy) FILTER (pair = 'backend'), 0)::BIGINT AS nonfinite_tokens,
           coalesce(sum(n_expected - n - n_nonfinite_behaviour - n_nonfinite_policy) FILTER (pair = 'backend'), 0)::BIGINT
               AS impossible_tokens,
           count(*) FILTER (pair = 'update') AS with_current_logprobs
    FROM statistics WHERE run = coalesce($run, run) GROUP BY run
)
SELECT run, coalesce(trained, 0) AS trained, coalesce(sampled, 0) AS sampled, without_rollout_logprobs, unaligned,
       without_rollout_record, without_trainer_version, without_rollout_version, without_entropy, without_reward,
       without_raw_tokens - coalesce(raw_sampled, 0) AS without_raw_tokens, coalesce(raw_sampled, 0) AS raw_sampled, repeated, coalesce(tokens, 0) AS tokens, coalesce(measured_tokens, 0) AS measured_tokens,
       coalesce(nonfinite_tokens, 0) AS nonfinite_tokens, coalesce(impossible_tokens, 0) AS impossible_tokens,
       trained - coalesce(with_current_logprobs, 0) AS without_current_logprobs
FROM trained FULL JOIN sampled USING (run) LEFT JOIN measured USING (run) LEFT JOIN chosen USING (run)
ORDER BY run
