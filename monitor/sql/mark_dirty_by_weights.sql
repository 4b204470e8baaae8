-- Steps whose weight lag or publish delay may change because a weight update became known after they were ingested.
-- Grain: one row per run and step. Inputs: incoming (Arrow): weight records; training_sequences, rollout_sequences, step_summaries,
-- weight_records, folded_spans. A step that has no data but weights does not become one of the run's steps by them.
INSERT INTO dirty_steps (run, step)
WITH updates AS (
    SELECT * FROM incoming WHERE source IS DISTINCT FROM 'worker'  -- what workers read changes no version
)
SELECT DISTINCT run, step FROM (
    SELECT s.run, s.step
    FROM training_sequences AS s
    JOIN updates AS w ON w.run = s.run AND w.version = s.weight_version
    UNION ALL
    SELECT s.run, s.step
    FROM (
        SELECT r.run, r.segment_id, r.row
        FROM rollout_sequences AS r
        -- Nothing is sampled with weights before they are there; an hour is more than clocks differ.
        JOIN updates AS w ON w.run = r.run AND r.time >= coalesce(w.applied_at, w.time) - INTERVAL 1 HOUR
        WHERE list_contains(list_transform(r.spans, lambda s: s."version"), w.version)
    ) AS r
    JOIN training_sequences AS s ON s.run = r.run AND s.rollout_segment = r.segment_id AND s.rollout_row = r.row
    UNION ALL
    SELECT f.run, f.step
    FROM folded_spans AS f
    JOIN updates AS w ON w.run = f.run AND (w.version = f.trainer_version OR w.version = f.version)
    UNION ALL
    SELECT s.run, s.step
    FROM updates AS w
    JOIN weight_records AS r ON r.run = w.run AND r.version = w.version
    JOIN step_summaries AS s ON s.run = r.run AND s.step = r.step
)
