-- freeze_due: Steps that may be frozen, those that were computed longest ago first: not among the newest $protected of their run, at rest since
-- $quiet_since, of no run that has steps of an older attempt still to train again, and of none of $deleted (a list). Grain: run and step, at
-- most $most. Inputs: training_sequences, step_summaries, abandoned_steps.
WITH present AS (
    SELECT run, step, count(*) AS sequences FROM training_sequences
    WHERE run NOT IN (SELECT run FROM abandoned_steps) AND NOT list_contains($deleted::VARCHAR[], run) GROUP BY run, step
), placed AS (
    SELECT run, step, p.sequences, s.computed_at, s.revision, row_number() OVER (PARTITION BY run ORDER BY step DESC) AS place
    FROM present AS p JOIN step_summaries AS s USING (run, step)
)
SELECT run, step, sequences, revision
FROM placed
WHERE place > $protected AND computed_at <= $quiet_since::TIMESTAMPTZ
ORDER BY computed_at, run, step
LIMIT $most

-- freeze_size: How much of the store's file is in use, in bytes; blocks that were freed are used again first. Grain: one row.
SELECT (used_blocks * block_size)::BIGINT AS bytes, (free_blocks * block_size)::BIGINT AS free_bytes FROM pragma_database_size()

-- freeze_rows: What is kept of steps, and their revisions. Grain: step of incoming (Arrow: run, step). Inputs: incoming, step_summaries, step_metrics, training_sequences,
-- rollout_sequences.
WITH counted AS (
    SELECT t.step, list(DISTINCT r.engine_config_id) FILTER (r.engine_config_id IS NOT NULL) AS engines
    FROM training_sequences AS t
    LEFT JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE (t.run, t.step) IN (SELECT (run, step) FROM incoming)
    GROUP BY t.step
), measured AS (
    SELECT step, map(list(metric ORDER BY metric), list(value ORDER BY metric)) AS metrics
    FROM step_metrics WHERE (run, step) IN (SELECT (run, step) FROM incoming) GROUP BY step
)
SELECT s.run, s.step, s.time, now() AS frozen_at, s.sequences, s.tokens, c.engines, metrics, pairs,
       {'received': s.received, 'seen': s.seen, 'missing': s.missing, 'missing_tokens': s.missing_tokens,
        'unseen': s.unseen, 'unseen_tokens': s.unseen_tokens, 'unaligned': s.unaligned, 'other_ids': s.other_ids, 'routed': s.routed,
        'versions_compared': s.versions_compared, 'versions_differing': s.versions_differing, 'engine_older': s.engine_older, 'engine_newer': s.engine_newer, 'grouped': s.grouped, 'copies': s.copies,
        'bits_compared': s.bits_compared, 'bits_differing': s.bits_differing, 'bits_unknown': s.bits_unknown,
        'older_compared': s.older_compared, 'older_differing': s.older_differing} AS counts, s.revision
FROM incoming AS i JOIN step_summaries AS s ON s.run = i.run AND s.step = i.step
LEFT JOIN counted AS c ON c.step = i.step LEFT JOIN measured AS m ON m.step = i.step
ORDER BY s.step

-- freeze_rollouts_due: Engine's records that no kept sequence needs once the steps $steps of $run are gone: those that only their sequences were joined
-- with, and of those which no step trained on: older than an hour before the oldest kept sequence, if these steps used later ones of the same writer, and
-- older than two days, whose clocks may be a day off each. Grain: rollout record. Inputs: training_sequences, rollout_sequences, segments.
WITH joined AS (
    SELECT rollout_segment AS segment_id, rollout_row AS row,
           step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps)) AS goes
    FROM training_sequences
    WHERE run = $run AND rollout_segment IS NOT NULL
), requests AS (  -- of a trajectory, the records that its row was made of
    SELECT j.goes, unnest(r.parts) AS part
    FROM joined AS j
    JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = j.segment_id AND r.row = j.row AND r.parts IS NOT NULL
), trained AS (
    SELECT segment_id, row, bool_and(goes) AS goes
    FROM (FROM joined UNION ALL SELECT part.segment_id, part.row, goes FROM requests)
    GROUP BY ALL
), used AS (  -- a writer counts its segments, whatever its clock says
    SELECT writer, max(sequence) AS newest FROM trained JOIN segments USING (segment_id) WHERE goes GROUP BY writer
), oldest AS (
    SELECT min(time) AS kept_since
    FROM training_sequences
    WHERE run = $run AND NOT (step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps)))
)
SELECT r.run, r.segment_id, r.row
FROM rollout_sequences AS r
JOIN segments AS s ON s.segment_id = r.segment_id
LEFT JOIN trained AS t ON t.segment_id = r.segment_id AND t.row = r.row
LEFT JOIN used AS u ON u.writer = s.writer
CROSS JOIN oldest AS o
WHERE r.run = $run
    AND coalesce(t.goes, r.time < o.kept_since - CASE WHEN s.sequence < u.newest THEN INTERVAL 1 HOUR ELSE INTERVAL 2 DAYS END, false)

-- freeze_covered: Segments of $run no row of which is left once its steps $steps and the rollout records of incoming (Arrow: run, segment_id, row) are
-- gone. Grain: segment. Inputs: incoming, segments, all_sequences, rollout_sequences.
SELECT segment_id FROM segments WHERE run = $run AND kind IN ('training', 'statistics', 'rollout')
EXCEPT SELECT segment_id FROM all_sequences WHERE run = $run AND (repeated_by IS NOT NULL OR NOT list_contains($steps::BIGINT[], step))
EXCEPT SELECT r.segment_id FROM rollout_sequences AS r ANTI JOIN incoming AS i ON i.segment_id = r.segment_id AND i.row = r.row WHERE r.run = $run

-- freeze_known: Steps of incoming (Arrow: run, step) that are frozen. Grain: step. `replaced`: as of older records than its own. Inputs: incoming,
-- step_summaries.
SELECT i.step, f.time < i.time AS replaced
FROM incoming AS i JOIN step_summaries AS f ON f.run = i.run AND f.step = i.step AND f.frozen_at IS NOT NULL

-- freeze_steps: Of frozen steps that the index knows, what the file has counts; their profiles go. Grain: step. Inputs: incoming (Arrow), as of freeze_rows.
UPDATE step_summaries AS s SET pairs = i.pairs, slices = NULL, frozen_at = i.frozen_at, engines = i.engines, profiled_tokens = 0
FROM incoming AS i WHERE s.run = i.run AND s.step = i.step

-- freeze_metrics: Metrics of frozen steps that the index does not know. Grain: step and metric. Inputs: incoming (Arrow), as of freeze_rows,
-- step_summaries.
INSERT INTO step_metrics
SELECT run, step, entry.key, entry.value
FROM (SELECT run, step, unnest(map_entries(metrics)) AS entry FROM incoming ANTI JOIN step_summaries USING (run, step))

-- freeze_summaries: Frozen steps that the index does not know. To be run after freeze_metrics. Grain: step. Inputs: incoming (Arrow), as of freeze_rows,
-- step_summaries.
INSERT INTO step_summaries BY NAME
SELECT run, step, tokens, sequences, time, now() AS computed_at, nextval('revision') AS revision, pairs, frozen_at, engines, unnest(counts)
FROM incoming ANTI JOIN step_summaries USING (run, step)

-- freeze_forget: Sequences of frozen steps, or their statistics; those of older attempts stay. {table}: all_sequences, or all_statistics.
-- Inputs: incoming (Arrow: run, step).
DELETE FROM {table} AS t USING incoming AS i WHERE t.repeated_by IS NULL AND t.run = i.run AND t.step = i.step

-- freeze_forget_rollouts: Grain: rollout record. Inputs: incoming (Arrow: run, segment_id, row).
DELETE FROM rollout_sequences AS r USING incoming AS i
WHERE i.run = r.run AND i.segment_id = r.segment_id AND i.row = r.row

-- freeze_span: Frozen steps of $run between $first and $last (both included; null: no bound). Grain: one row. Inputs: step_summaries.
SELECT count(*) AS frozen, min(step) AS first_frozen, max(step) AS last_frozen
FROM step_summaries
WHERE run = $run AND frozen_at IS NOT NULL AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
