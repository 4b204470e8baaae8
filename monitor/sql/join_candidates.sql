-- Trained sequences and the rollout record each belongs to, where that is news. Grain: one row per training record of a queued
-- sample (mark <= $high, run not $resting) that has a rollout record and is not known to match one. Inputs: join_queue, training_sequences,
-- rollout_sequences, segments (where the raw tokens lie; null: not kept).
-- Sequences of several parts are in join_trajectories.
-- Of several records of a sample: the one with the same tokens; else one of a fitting length; else the newest that was there
-- before the training record; else the earliest after it. Sample ids that a run uses again at every step resolve by tokens.
WITH queued AS (
    SELECT DISTINCT run, sample_id FROM join_queue WHERE mark <= $high AND NOT list_contains($resting, run)
),
best AS (
    SELECT
        s.run, s.step, s.segment_id, s.row, s.n_total, s.n_expected, s.rollout_source,
        s.rollout_segment AS linked_segment, s.rollout_row AS linked_row,
        s.token_hash = r.token_hash AS same_hash,
        r.segment_id AS rollout_segment, r.row AS rollout_row, r.n_tokens,
        -- Layers on both sides together; 0: one of them has no routes to compare.
        coalesce(s.route_layers + r.route_layers, 0) AS route_layers
    FROM queued AS q
    JOIN training_sequences AS s ON s.run = q.run AND s.sample_id = q.sample_id
    JOIN rollout_sequences AS r ON r.run = q.run AND r.sample_id = q.sample_id
    WHERE ((s.token_match AND s.length_match) IS NOT TRUE OR s.joined_by = 'tokens') AND s.part_ids IS NULL AND r.parts IS NULL
    QUALIFY row_number() OVER (
        PARTITION BY s.segment_id, s.row
        ORDER BY
            coalesce(s.token_hash = r.token_hash, false) DESC,
            r.n_tokens IN (s.n_total, s.n_expected) DESC,
            coalesce(r.time <= s.time, false) DESC,
            abs(epoch_us(s.time) - epoch_us(r.time)) NULLS LAST,
            r.segment_id, r.row
    ) = 1
)
SELECT
    b.* EXCLUDE (linked_segment, linked_row),
    t.raw_file AS training_file,
    o.raw_file AS rollout_file
FROM best AS b
LEFT JOIN segments AS t ON t.segment_id = b.segment_id
LEFT JOIN segments AS o ON o.segment_id = b.rollout_segment
WHERE (b.linked_segment, b.linked_row) IS DISTINCT FROM (b.rollout_segment, b.rollout_row)
ORDER BY b.run, b.step, b.segment_id, b.row
