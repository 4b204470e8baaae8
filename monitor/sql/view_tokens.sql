-- Every raw token that is still kept. Grain: one row per token of a training record, `position` counting from 0, masked ones
-- included. Inputs: raw_training; for what the trainer did not receive, the rollout record that the join job found (raw_rollout).
-- `rollout_logprob`: as the trainer received it, else from the rollout record; null where nothing is known or tokens disagree.
-- `weight_version`: that of the engine when it sampled the token. `broken`: why a token under the mask is left out of every mean,
-- by the rules of logprobe.collectors.kernel; null: it is not, or one of the two log-probs is missing.
WITH placed AS (
    SELECT
        t.*,
        s.rollout_source,
        s.alignment,
        o.logprobs AS source_logprobs,
        o.spans,
        -- Place of each token among the rollout's tokens (from 1): its own position, or its rank among those under the mask,
        -- which two sorts give: the first lists positions with the masked-out ones last, the second inverts that list.
        CASE
            WHEN s.alignment = 'all' OR (s.alignment = 'prefix' AND t.mask IS NULL) THEN range(1, len(t.token_ids) + 1)
            WHEN s.alignment IN ('masked', 'prefix') THEN list_grade_up(list_grade_up(
                list_transform(t.mask, lambda m, i: i + CASE WHEN m THEN 0 ELSE len(t.mask) END)
            ))
        END AS places
    FROM raw_training AS t
    LEFT JOIN training_sequences AS s
        ON s.segment_id = t.segment_id AND s.row = t.row AND s.run = t.run AND s.step = t.step
    LEFT JOIN raw_rollout AS o ON o.segment_id = s.rollout_segment AND o.row = s.rollout_row AND o.run = t.run
),
flat AS (
    SELECT
        run, step, rank, sample_id, group_id, rollout_source, source_logprobs, spans, weight_version AS trainer_weight_version,
        alignment,
        unnest(range(len(token_ids))) AS position,
        unnest(token_ids) AS token_id,
        unnest(coalesce(mask, list_transform(token_ids, lambda x: true))) AS mask,
        unnest(rollout_logprobs) AS received_logprob,
        unnest(trainer_logprobs) AS trainer_logprob,
        unnest(current_logprobs) AS current_logprob,
        unnest(entropy) AS entropy,
        unnest(advantages) AS advantage,
        unnest(places) AS place,
        segment_id, row
    FROM placed
),
chosen AS (
    SELECT
        * EXCLUDE (place),
        CASE WHEN alignment = 'all' OR mask THEN place END AS place,
        CASE
            WHEN rollout_source = 'received' THEN received_logprob
            WHEN rollout_source = 'joined' AND (alignment = 'all' OR mask) THEN source_logprobs[place]
        END AS rollout_logprob
    FROM flat
)
SELECT
    run, step, rank, sample_id, group_id, position::INTEGER AS position, token_id, mask,
    rollout_logprob, trainer_logprob, current_logprob,
    trainer_logprob::DOUBLE - rollout_logprob::DOUBLE AS log_ratio,
    CASE
        WHEN NOT mask OR rollout_logprob IS NULL OR trainer_logprob IS NULL THEN NULL
        WHEN NOT isfinite(rollout_logprob) OR NOT isfinite(trainer_logprob) THEN 'nonfinite'
        WHEN least(rollout_logprob, trainer_logprob) <= -9984 OR rollout_logprob = 1 OR trainer_logprob = 1 THEN 'sentinel'
        WHEN greatest(rollout_logprob, trainer_logprob) > 1e-6 THEN 'positive'
        WHEN rollout_logprob = 0 AND trainer_logprob < -1 THEN 'zero'
    END AS broken,
    entropy, advantage,
    list_filter(spans, lambda s: s."start" < place AND place <= s."end")[1]."version" AS weight_version,
    trainer_weight_version, rollout_source, segment_id, row
FROM chosen
