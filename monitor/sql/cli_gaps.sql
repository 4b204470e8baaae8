-- What each run lacks of the inputs that metrics need, as counts of sequences.
-- Grain: run. Inputs: training_sequences, rollout_sequences, statistics. Parameters: none.
WITH trained AS (
    SELECT run, count(*) AS trained,
           count(*) FILTER (rollout_source = 'missing') AS without_rollout_logprobs,
           count(*) FILTER (rollout_source = 'unaligned') AS unaligned,
           count(*) FILTER (weight_version IS NULL) AS without_trainer_version,
           count(*) FILTER (entropy_n IS NULL OR entropy_n = 0) AS without_entropy,
           count(*) FILTER (reward IS NULL) AS without_reward,
           count(*) FILTER (NOT raw_kept) AS without_raw_tokens
    FROM training_sequences GROUP BY run
), sampled AS (
    SELECT run, count(*) AS sampled,
           count(*) FILTER (len(list_filter(coalesce(spans, []), lambda span: span.version IS NOT NULL)) = 0)
               AS without_rollout_version
    FROM rollout_sequences GROUP BY run
), moved AS (
    SELECT run, count(*) FILTER (pair = 'total') AS with_current_logprobs FROM statistics GROUP BY run
)
SELECT run, coalesce(trained, 0) AS trained, coalesce(sampled, 0) AS sampled, without_rollout_logprobs, unaligned,
       without_trainer_version, without_rollout_version, without_entropy, without_reward, without_raw_tokens,
       coalesce(with_current_logprobs, 0) AS with_current_logprobs
FROM trained FULL JOIN sampled USING (run) LEFT JOIN moved USING (run)
ORDER BY run
