-- Trained sequences and the rollout record each belongs to, where that is news. Grain: one row per training record of a queued
-- sample (mark <= $high, run not $resting) that has a rollout record and is not known to match one; where `several`, one row per record that
-- it may be. Inputs: join_queue, training_sequences, rollout_sequences, segments (where the raw tokens lie; null: not kept).
-- Parameters: $clock (seconds by which clocks of machines may differ).
-- Sequences of several parts are in join_trajectories.
-- Of several records of a sample: the one with the same tokens; else one of a fitting length; else the newest that was there
-- before the training record; else the earliest after it. Sample ids that a run uses again at every step resolve by tokens.
-- Almost every record has one that it may be, and is not ranked: windows cost more than all the rest.
-- `several`: records with the same tokens as that one were there before the training, and their log-probs or versions differ.
WITH queued AS (
    SELECT DISTINCT run, sample_id FROM join_queue WHERE mark <= $high AND NOT list_contains($resting, run)
),
pairs AS MATERIALIZED (
    SELECT
        s.run, s.step, s.segment_id, s.row, s.n_total, s.n_expected, s.rollout_source, s.joined_by,
        (s.token_match AND s.length_match) IS TRUE AND s.joined_by IS DISTINCT FROM 'tokens' AS matched,
        (s.rollout_segment, s.rollout_row) IS NOT DISTINCT FROM (r.segment_id, r.row) AS linked,
        s.token_hash = r.token_hash AS same_hash, s.time AS trained_at, r.time AS sampled_at, r.token_hash, r.logprob_sum,
        hash(r.spans) AS spans, coalesce(r.time <= s.time + to_seconds($clock::DOUBLE), true) AS before,
        r.segment_id AS rollout_segment, r.row AS rollout_row, r.n_tokens,
        -- Layers on both sides together; 0: one of them has no routes to compare.
        coalesce(s.route_layers + r.route_layers, 0) AS route_layers
    FROM queued AS q
    JOIN training_sequences AS s ON s.run = q.run AND s.sample_id = q.sample_id
    JOIN rollout_sequences AS r ON r.run = q.run AND r.sample_id = q.sample_id
    WHERE s.part_ids IS NULL AND r.parts IS NULL
),
ambiguous AS (
    SELECT segment_id, row FROM pairs GROUP BY ALL HAVING count(*) > 1
),
ranked AS (
    SELECT *,
        row_number() OVER (
            PARTITION BY segment_id, row
            ORDER BY
                matched AND linked DESC,
                coalesce(same_hash, false) DESC,
                n_tokens IN (n_total, n_expected) DESC,
                coalesce(sampled_at <= trained_at, false) DESC,
                abs(epoch_us(trained_at) - epoch_us(sampled_at)) NULLS LAST,
                rollout_segment, rollout_row
        ) AS place,
        count(*) FILTER (before) OVER alike > 1
            AND (min(coalesce(logprob_sum, 'nan')) FILTER (before) OVER alike IS DISTINCT FROM max(coalesce(logprob_sum, 'nan')) FILTER (before) OVER alike
                OR min(spans) FILTER (before) OVER alike IS DISTINCT FROM max(spans) FILTER (before) OVER alike) AS several
    FROM pairs SEMI JOIN ambiguous USING (segment_id, row)
    WINDOW alike AS (PARTITION BY segment_id, row, token_hash, n_tokens)
),
of_several AS (
    SELECT *, bool_or(several AND place = 1) OVER record AS unsure, max(token_hash) FILTER (place = 1) OVER record AS chosen_hash,
        max(n_tokens) FILTER (place = 1) OVER record AS chosen_tokens
    FROM ranked
    WINDOW record AS (PARTITION BY segment_id, row)
),
chosen AS (
    SELECT * FROM of_several
    WHERE CASE
        WHEN unsure THEN joined_by IS DISTINCT FROM 'ambiguous' AND before AND token_hash = chosen_hash AND n_tokens = chosen_tokens
        ELSE place = 1 AND NOT matched AND NOT linked
    END
    UNION ALL BY NAME
    SELECT *, 1 AS place, false AS unsure FROM pairs ANTI JOIN ambiguous USING (segment_id, row) WHERE NOT matched AND NOT linked
)
SELECT
    c.run, c.step, c.segment_id, c.row, c.n_total, c.n_expected, c.rollout_source, c.same_hash, c.rollout_segment, c.rollout_row, c.n_tokens,
    c.route_layers, c.unsure AS several,
    t.raw_file AS training_file,
    o.raw_file AS rollout_file
FROM chosen AS c
LEFT JOIN segments AS t ON t.segment_id = c.segment_id
LEFT JOIN segments AS o ON o.segment_id = c.rollout_segment
ORDER BY c.run, c.step, c.segment_id, c.row, c.place
