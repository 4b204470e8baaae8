-- What each run lacks of the inputs that metrics need, as counts of sequences; and of its tokens under the mask, how many of them
-- are broken and how many have no pair of log-probs at all.
-- `blank_tokens`: of sequences too short to count as broken in which every log-prob is exactly 0 on both sides.
-- Of frozen steps, of which no sequences are kept, nothing is counted.
-- `raw_sampled`: statistics only because a recorder was told to keep raw tokens of a sample (raw_fraction), which loses nothing;
-- not part of `without_raw_tokens`. `framework`: as the trainer's configuration names it; null: not said.
-- Grain: run. Inputs: training_sequences, segments, rollout_sequences, statistics, health_records, config_records. Parameters: $run (null: all).
WITH reduced AS (
    SELECT run, sum(rows)::BIGINT AS sequences FROM segments WHERE kind = 'statistics' AND run = coalesce($run, run) GROUP BY run
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
           count(*) FILTER (joined_by = 'tokens') AS joined_by_tokens, count(*) FILTER (joined_by = 'ambiguous') AS ambiguous,
           count(*) FILTER (rollout_versions IS NOT NULL) AS with_stated_versions,
           count(*) FILTER (entropy_n IS NULL OR entropy_n = 0) AS without_entropy,
           count(*) FILTER (reward IS NULL) AS without_reward,
           count(*) FILTER (NOT raw_kept) AS without_raw_tokens,
           -- A sample may be trained on in several steps, but in one step it belongs once. Other tokens are another sequence.
           count(*) - count(DISTINCT (step, sample_id, token_hash)) AS repeated,
           sum(n_expected)::BIGINT AS tokens
    FROM training_sequences WHERE run = coalesce($run, run) GROUP BY run
), sampled AS (
    SELECT run, count(*) AS sampled,
           count(*) FILTER (len(list_filter(coalesce(spans, []), lambda span: span.version IS NOT NULL)) = 0) AS without_rollout_version
    FROM rollout_sequences WHERE parts IS NULL AND run = coalesce($run, run) GROUP BY run
), measured AS (
    SELECT run,
           coalesce(sum(n) FILTER (pair = 'backend'), 0)::BIGINT AS measured_tokens,
           coalesce(sum(nonfinite) FILTER (pair = 'backend'), 0)::BIGINT AS nonfinite_tokens,
           coalesce(sum(n_expected - n - nonfinite) FILTER (pair = 'backend'), 0)::BIGINT AS impossible_tokens,
           coalesce(sum(n) FILTER (pair = 'backend' AND blank), 0)::BIGINT AS blank_tokens,
           count(*) FILTER (pair = 'update') AS with_current_logprobs
    FROM (
        SELECT run, pair, n, n_expected, n_nonfinite_behaviour + n_nonfinite_policy AS nonfinite, sum_behaviour2 = 0 AND sum_policy2 = 0 AS blank
        FROM statistics
    )
    WHERE run = coalesce($run, run) GROUP BY run
), frameworks AS (
    SELECT run, max(document ->> '$.framework') AS framework
    FROM config_records
    WHERE kind = 'trainer_config' AND json_valid(document) AND run = coalesce($run, run) GROUP BY run
)
SELECT run, framework, coalesce(trained, 0) AS trained, coalesce(sampled, 0) AS sampled, without_rollout_logprobs, unaligned,
       without_rollout_record, without_trainer_version, coalesce(with_stated_versions, 0) AS with_stated_versions,
       coalesce(joined_by_tokens, 0) AS joined_by_tokens, coalesce(ambiguous, 0) AS ambiguous, without_rollout_version, without_entropy, without_reward,
       without_raw_tokens - coalesce(raw_sampled, 0) AS without_raw_tokens, coalesce(raw_sampled, 0) AS raw_sampled, repeated, coalesce(tokens, 0) AS tokens, coalesce(measured_tokens, 0) AS measured_tokens,
       coalesce(nonfinite_tokens, 0) AS nonfinite_tokens, coalesce(impossible_tokens, 0) AS impossible_tokens,
       coalesce(blank_tokens, 0) AS blank_tokens,
       trained - coalesce(with_current_logprobs, 0) AS without_current_logprobs
FROM trained FULL JOIN sampled USING (run) LEFT JOIN measured USING (run) LEFT JOIN chosen USING (run)
LEFT JOIN frameworks USING (run)
ORDER BY run
