-- Trained sequences and rollout records with the same sampled tokens, in runs in which no sample id has met yet. Grain: one row per training record
-- with news (its sample, or a rollout record with its tokens, is queued: mark <= $high, run not $resting) and with such a rollout record.
-- `alone`: it has one, and that has one sample id of the trainer; else which belongs to which is not known, and rollout_segment is null.
-- Inputs: join_queue, training_sequences, rollout_sequences, segments (where raw tokens lie). Parameters: $fewest (tokens below which equal
-- answers to different prompts are likely), $steps (a sequence was sampled after the training of the step so many before), $clock
-- (seconds by which clocks of machines may differ).
WITH queued AS (
    SELECT DISTINCT run, sample_id FROM join_queue WHERE mark <= $high AND NOT list_contains($resting, run)
),
unmet AS (
    SELECT run FROM (SELECT DISTINCT run FROM queued)
    WHERE run NOT IN (SELECT run FROM training_sequences WHERE joined_by IN ('id', 'parts'))
        AND run IN (SELECT run FROM rollout_sequences)
),
news AS (
    SELECT s.run, s.token_hash FROM queued AS q JOIN training_sequences AS s ON s.run = q.run AND s.sample_id = q.sample_id
    WHERE s.run IN (FROM unmet)
    UNION
    SELECT r.run, r.token_hash FROM queued AS q JOIN rollout_sequences AS r ON r.run = q.run AND r.sample_id = q.sample_id
    WHERE r.run IN (FROM unmet)
),
begun AS (
    SELECT run, step, min(time) AS time FROM training_sequences WHERE run IN (FROM unmet) GROUP BY run, step
),
earliest AS (
    SELECT b.run, b.step, max(e.time) AS time
    FROM begun AS b LEFT JOIN begun AS e ON e.run = b.run AND e.step < b.step - $steps
    GROUP BY b.run, b.step
),
pairs AS (
    SELECT
        s.run, s.step, s.segment_id, s.row, s.sample_id, s.n_total, s.n_expected, s.rollout_source, s.joined_by,
        s.rollout_segment AS linked_segment, s.rollout_row AS linked_row, true AS same_hash,
        r.segment_id AS rollout_segment, r.row AS rollout_row, r.n_tokens, coalesce(s.route_layers + r.route_layers, 0) AS route_layers
    FROM news AS n
    JOIN training_sequences AS s ON s.run = n.run AND s.token_hash = n.token_hash AND s.part_ids IS NULL AND s.n_expected >= $fewest
    JOIN earliest AS e ON e.run = s.run AND e.step = s.step
    JOIN rollout_sequences AS r ON r.run = n.run AND r.token_hash = n.token_hash AND r.n_tokens = s.n_expected
        AND r.parts IS NULL AND r.trajectory IS NULL
        AND r.time <= s.time + to_seconds($clock::DOUBLE) AND r.time >= coalesce(e.time - to_seconds($clock::DOUBLE), r.time)
),
counted AS (
    SELECT *,
           count(*) OVER (PARTITION BY segment_id, row) = 1
               AND min(sample_id) OVER rollout = max(sample_id) OVER rollout AS alone
    FROM pairs
    WINDOW rollout AS (PARTITION BY rollout_segment, rollout_row)
),
chosen AS (
    SELECT * FROM counted QUALIFY row_number() OVER (PARTITION BY segment_id, row ORDER BY rollout_segment, rollout_row) = 1
)
SELECT c.* EXCLUDE (linked_segment, linked_row, joined_by, sample_id), t.raw_file AS training_file, o.raw_file AS rollout_file
FROM chosen AS c
LEFT JOIN segments AS t ON t.segment_id = c.segment_id
LEFT JOIN segments AS o ON o.segment_id = c.rollout_segment
WHERE CASE
    WHEN c.alone THEN (c.linked_segment, c.linked_row) IS DISTINCT FROM (c.rollout_segment, c.rollout_row)
    ELSE c.joined_by IS DISTINCT FROM 'ambiguous'
END
ORDER BY c.run, c.step, c.segment_id, c.row
