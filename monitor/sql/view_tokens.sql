-- Every raw token that is still kept. Grain: one row per token of a training record, `position` counting from 0, masked ones
-- included. Inputs: raw_training; for what the trainer did not receive, the rollout record that it belongs to (raw_rollout,
-- rollout_sequences). Of a frozen step it is not known.
-- `older`: of an attempt whose step a later one trained again; no metric counts it.
-- `rollout_logprob`: as the trainer received it, else from the rollout record; null where nothing is known or tokens disagree.
-- `weight_version`: of the weights that sampled the token, as engine or trainer recorded it; null where they differ. `broken`: why a token under the mask is left out of every mean,
-- by the rules of logprobe.collectors.kernel.arithmetic; null: it is not, or one of the two log-probs is missing.
WITH known AS (
    SELECT run, step, segment_id, row, rollout_source, alignment, rollout_segment, rollout_row, repeated_by IS NOT NULL AS older FROM all_sequences
),
placed AS (
    SELECT
        t.*,
        coalesce(s.rollout_source, CASE WHEN t.rollout_logprobs IS NOT NULL THEN 'received' END) AS rollout_source,
        s.alignment, coalesce(s.older, false) AS older,
        coalesce(o.logprobs, r.logprobs) AS source_logprobs,
        engine_spans(
            coalesce(r.spans, o.spans), coalesce(r.decisions, o.decisions), coalesce(r.clock_offset, o.clock_offset), t.time
        ) AS spans, t.rollout_versions AS stated,
        -- Place of each token among the rollout's tokens (from 1): its own position, or its rank among those under the mask,
        -- which two sorts give: the first lists positions with the masked-out ones last, the second inverts that list.
        CASE
            WHEN s.alignment = 'all' OR (s.alignment = 'prefix' AND t.mask IS NULL) THEN range(1, len(t.token_ids) + 1)
            WHEN s.alignment IN ('masked', 'prefix') THEN list_grade_up(list_grade_up(
                list_transform(t.mask, lambda m, i: i + CASE WHEN m THEN 0 ELSE len(t.mask) END)
            ))
        END AS places
    FROM raw_training AS t
    LEFT JOIN known AS s
        ON s.segment_id = t.segment_id AND s.row = t.row AND s.run = t.run AND s.step = t.step
    LEFT JOIN rollout_sequences AS r ON r.segment_id = s.rollout_segment AND r.row = s.rollout_row AND r.run = t.run
    LEFT JOIN raw_rollout AS o ON o.segment_id = s.rollout_segment AND o.row = s.rollout_row AND o.run = t.run
),
flat AS (
    SELECT
        run, step, rank, sample_id, group_id, rollout_source, source_logprobs, spans, stated, weight_version AS trainer_weight_version,
        alignment, older,
        unnest(range(len(token_ids))) AS position,
        unnest(token_ids) AS token_id,
        unnest(coalesce(mask, list_transform(token_ids, lambda x: true))) AS mask,
        unnest(rollout_logprobs) AS received_logprob,
        unnest(trainer_logprobs) AS trainer_logprob,
        unnest(current_logprobs) AS current_logprob,
        unnest(reference_logprobs) AS reference_logprob,
        unnest(teacher_logprobs) AS teacher_logprob,
        unnest(entropy) AS entropy,
        unnest(advantages) AS advantage,
        unnest(places) AS rank_of_token,
        segment_id, row
    FROM placed
),
numbered AS (
    SELECT * EXCLUDE (rank_of_token), CASE WHEN alignment = 'all' OR mask THEN rank_of_token END AS place FROM flat
),
chosen AS (
    SELECT
        *,
        CASE
            WHEN rollout_source = 'received' THEN received_logprob
            WHEN rollout_source = 'joined' AND (alignment = 'all' OR mask) THEN source_logprobs[place]
        END AS rollout_logprob,
        list_filter(spans, lambda s: s."start" < place AND place <= s."end")[1]."version" AS of_engine,
        CASE WHEN alignment = 'all' OR mask THEN list_filter(
            stated, lambda s: s."start" <= position AND position < s."end"
        )[1]."version" END AS of_trainer
    FROM numbered
)
SELECT
    run, step, rank, sample_id, group_id, position::INTEGER AS position, token_id, mask,
    rollout_logprob, trainer_logprob, current_logprob, reference_logprob, teacher_logprob,
    trainer_logprob::DOUBLE - rollout_logprob::DOUBLE AS log_ratio,
    CASE
        WHEN NOT mask OR rollout_logprob IS NULL OR trainer_logprob IS NULL THEN NULL
        WHEN NOT isfinite(rollout_logprob) OR NOT isfinite(trainer_logprob) THEN 'nonfinite'
        WHEN least(rollout_logprob, trainer_logprob) <= -9984 OR rollout_logprob = 1 OR trainer_logprob = 1 THEN 'sentinel'
        WHEN greatest(rollout_logprob, trainer_logprob) > 1e-6 THEN 'positive'
        WHEN rollout_logprob = 0 AND trainer_logprob < -1 THEN 'zero'
    END AS broken,
    entropy, advantage,
    CASE WHEN of_engine = of_trainer OR of_engine IS NULL OR of_trainer IS NULL THEN coalesce(of_engine, of_trainer) END AS weight_version,
    trainer_weight_version, rollout_source, segment_id, row, older
FROM chosen
