-- join_ambiguous: Trained sequences whose tokens several rollout records have, or whose rollout record has the tokens of several: they stay without one. Grain:
-- training record. Inputs: incoming (Arrow).
UPDATE training_sequences AS s
SET
    joined_by = 'ambiguous',
    rollout_source = CASE WHEN s.rollout_source = 'received' THEN 'received' ELSE 'missing' END,
    rollout_segment = NULL, rollout_row = NULL, alignment = NULL, token_match = NULL, length_match = NULL, received_max_abs_diff = NULL,
    routes_match = NULL, routes_expected = NULL, routes_compared = NULL, routes_equal = NULL
FROM incoming AS i
WHERE s.segment_id = i.segment_id AND s.row = i.row

-- join_done: Takes samples off the join queue whose news have been dealt with. Inputs: join_queue; $high: the last mark that was read;
-- $resting: runs whose samples stay on it.
DELETE FROM join_queue WHERE mark <= $high AND NOT list_contains($resting, run)

-- join_forget_joined: Statistics with the r of rollout records that turned out not to be the only ones with these tokens. Grain: training record. Inputs: incoming
-- (Arrow), training_sequences.
DELETE FROM statistics AS s
USING incoming AS i JOIN training_sequences AS t ON t.segment_id = i.segment_id AND t.row = i.row AND t.rollout_source = 'joined'
WHERE s.segment_id = i.segment_id AND s.row = i.row AND s.pair IN ('backend', 'total')

-- join_forget_statistics: Statistics that the join is about to rewrite. Grain: one row per training record and pair. Inputs: incoming (Arrow).
DELETE FROM statistics AS s
USING incoming AS i
WHERE s.segment_id = i.segment_id AND s.row = i.row AND s.pair IN ('backend', 'total') AND i.backend IS NOT NULL

-- join_lists: Both sides' token lists of matched records. Grain: one row per row of incoming (Arrow: number, keys of both records,
-- with_routes), in its order. Inputs: incoming, raw Parquet files $training_files and $rollout_files.
SELECT
    i.number, t.token_ids, t.mask, t.rollout_logprobs, t.trainer_logprobs, t.current_logprobs, t.advantages,
    CASE WHEN i.with_routes THEN t.routes END AS routes,
    o.token_ids AS rollout_token_ids, o.logprobs,
    CASE WHEN i.with_routes THEN o.routes END AS rollout_routes
FROM incoming AS i
JOIN read_parquet($training_files, union_by_name = true, hive_partitioning = false) AS t
    ON t.segment_id = i.segment_id AND t.row = i.row
JOIN read_parquet($rollout_files, union_by_name = true, hive_partitioning = false) AS o
    ON o.segment_id = i.rollout_segment AND o.row = i.rollout_row
ORDER BY i.number

-- join_marks: The oldest $samples marks of the join queue. Grain: one row: the highest of them, null when the queue is empty, how many they are
-- (`taken`), and how many marks there are in all (`waiting`). Inputs: join_queue. Parameters: $samples, $resting (runs that are left alone
-- for now).
SELECT max(mark) AS high, count(*) AS taken, (SELECT count(*) FROM join_queue) AS waiting
FROM (SELECT mark FROM join_queue WHERE NOT list_contains($resting, run) ORDER BY mark LIMIT $samples)

-- join_rollout_lists: Token lists of rollout records. Grain: one row per row of incoming (Arrow: number, rollout_segment, rollout_row), in its order.
-- Inputs: incoming, raw Parquet files $rollout_files.
SELECT i.number, o.token_ids, o.logprobs
FROM incoming AS i
JOIN read_parquet($rollout_files, union_by_name = true, hive_partitioning = false) AS o
    ON o.segment_id = i.rollout_segment AND o.row = i.rollout_row
ORDER BY i.number

-- join_training_lists: Token lists of training records. Grain: one row per row of incoming (Arrow: number, segment_id, row), in its order.
-- Inputs: incoming, raw Parquet files $training_files.
SELECT i.number, t.token_ids, t.mask, t.rollout_logprobs, t.trainer_logprobs, t.current_logprobs, t.advantages
FROM incoming AS i
JOIN read_parquet($training_files, union_by_name = true, hive_partitioning = false) AS t
    ON t.segment_id = i.segment_id AND t.row = i.row
ORDER BY i.number

-- join_update: Writes what the join found out. Grain: one row per training record. Inputs: incoming (Arrow).
UPDATE training_sequences AS s
SET
    rollout_source = i.rollout_source,
    rollout_segment = i.rollout_segment,
    rollout_row = i.rollout_row,
    alignment = i.alignment,
    joined_by = i.joined_by,
    token_match = i.token_match,
    length_match = i.length_match,
    received_max_abs_diff = i.received_max_abs_diff,
    routes_match = i.routes_match,
    routes_expected = i.routes_expected,
    routes_compared = i.routes_compared,
    routes_equal = i.routes_equal
FROM incoming AS i
WHERE s.segment_id = i.segment_id AND s.row = i.row

-- join_ways: Which of the rarer ways to join can find anything for queued samples (mark <= $high, run not $resting). Grain: one row. `parts`: some are
-- of several engine requests, see join_trajectories. `unmet`: some are of runs in which no sample id has met yet, see join_by_tokens.
-- Inputs: join_queue, training_parts, training_sequences, rollout_sequences.
WITH queued AS (
    SELECT DISTINCT run, sample_id FROM join_queue WHERE mark <= $high
)
SELECT
    EXISTS (SELECT 1 FROM queued SEMI JOIN training_parts USING (run))
        OR EXISTS (SELECT 1 FROM queued AS q JOIN rollout_sequences AS r ON r.run = q.run AND r.trajectory = q.sample_id) AS parts,
    EXISTS (
        SELECT 1 FROM (SELECT DISTINCT run FROM queued WHERE NOT list_contains($resting, run))
        ANTI JOIN (SELECT run FROM training_sequences WHERE joined_by IN ('id', 'parts')) USING (run)
        SEMI JOIN rollout_sequences USING (run)
    ) AS unmet
