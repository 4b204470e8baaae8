-- versions_dirty: Steps that trained on rollout records whose versions were corrected. Grain: run and step. Inputs: incoming (Arrow), training_sequences.
INSERT INTO dirty_steps (run, step)
SELECT DISTINCT s.run, s.step
FROM incoming AS i
JOIN training_sequences AS s ON s.run = i.run AND s.rollout_segment = i.segment_id AND s.rollout_row = i.row

-- versions_done: Takes off the queue what has been looked at. Inputs: version_queue; $high: the last mark that was read; $resting: runs
-- whose rows stay on it.
DELETE FROM version_queue WHERE mark <= $high AND NOT list_contains($resting, run)

-- versions_high: The newest mark of the queue of versions, but for runs that are $resting. Grain: one row, null when it is empty. Inputs:
-- version_queue.
SELECT max(mark) AS high FROM version_queue WHERE NOT list_contains($resting, run)

-- versions_open: Trained sequences of several parts, one of which was corrected, are joined again. Grain: training record. Inputs: incoming (Arrow),
-- rollout_sequences, training_sequences.
UPDATE training_sequences AS s SET length_match = false
FROM incoming AS i JOIN rollout_sequences AS r ON r.run = i.run AND r.parts IS NOT NULL
WHERE s.run = r.run AND s.rollout_segment = r.segment_id AND s.rollout_row = r.row
    AND len(list_filter(r.parts, lambda p: p.segment_id = i.segment_id AND p."row" = i.row)) > 0

-- versions_queue_join: Queues them. Grain: run and sample. Inputs: incoming (Arrow), rollout_sequences.
INSERT INTO join_queue (run, sample_id)
SELECT DISTINCT r.run, r.sample_id
FROM incoming AS i JOIN rollout_sequences AS r ON r.run = i.run AND r.parts IS NOT NULL
WHERE len(list_filter(r.parts, lambda p: p.segment_id = i.segment_id AND p."row" = i.row)) > 0

-- versions_steps: Times of the steps of rollout records. Grain: one row per row of incoming (Arrow: number, segment_id, row), in its order.
-- Inputs: incoming, raw Parquet files $files.
SELECT i.number, o.step_times
FROM incoming AS i
JOIN read_parquet($files, union_by_name = true, hive_partitioning = false) AS o ON o.segment_id = i.segment_id AND o.row = i.row
ORDER BY i.number

-- versions_update: Corrects the versions of rollout records. Grain: one row per rollout record. Inputs: incoming (Arrow).
UPDATE rollout_sequences AS r SET spans = i.spans, decisions = i.decisions
FROM incoming AS i WHERE r.run = i.run AND r.segment_id = i.segment_id AND r.row = i.row
