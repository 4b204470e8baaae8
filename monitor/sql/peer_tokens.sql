-- Raw tokens of the steps $first to $last as lists, for the sequences that have log-probs of both sides, and those without a token,
-- which other frameworks count, too. Grain: one row per sequence of a training record, in the order of steps. Inputs: tokens_in (the
-- run's files). Parameters: $run, $first, $last.
-- Of frozen steps nothing says which rollout record a sequence belongs to; they are left out.
-- What is unknown is null; where the mask is 0 nobody looks, and it is 0.
WITH frozen AS (
    SELECT step FROM step_summaries WHERE run = $run AND frozen_at IS NOT NULL
),
filled AS (
    SELECT
        step, segment_id, "row", position, mask,
        CASE WHEN mask THEN rollout_logprob ELSE coalesce(rollout_logprob, 0) END::DOUBLE AS rollout,
        CASE WHEN mask THEN trainer_logprob ELSE coalesce(trainer_logprob, 0) END::DOUBLE AS trainer,
        current_logprob::DOUBLE AS current,
        reference_logprob::DOUBLE AS reference,
        advantage::DOUBLE AS advantage,
        rollout_logprob IS NOT NULL AS has_rollout,
        trainer_logprob IS NOT NULL AS has_trainer
    FROM tokens_in($training_files, $rollout_files)
    WHERE run = $run AND step BETWEEN $first AND $last AND step NOT IN (FROM frozen) AND NOT older
)
SELECT
    step, segment_id, "row",
    list(mask ORDER BY position) AS mask,
    list(rollout ORDER BY position) AS rollout,
    list(trainer ORDER BY position) AS trainer,
    list(current ORDER BY position) AS current,
    list(reference ORDER BY position) AS reference,
    list(advantage ORDER BY position) AS advantage
FROM filled
GROUP BY step, segment_id, "row"
HAVING bool_or(has_rollout) AND bool_or(has_trainer)
UNION ALL
SELECT step, segment_id, "row", []::BOOLEAN[], []::DOUBLE[], []::DOUBLE[], []::DOUBLE[], []::DOUBLE[], []::DOUBLE[]
FROM raw_training_in($training_files)
WHERE run = $run AND step BETWEEN $first AND $last AND len(token_ids) = 0 AND step NOT IN (FROM frozen)
ORDER BY step, segment_id, "row"
