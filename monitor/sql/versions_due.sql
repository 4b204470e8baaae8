-- Rollout records of which some tokens belong to a version that their engine did not know of yet. Grain: one row per rollout record. Inputs:
-- version_queue (mark <= $high), rollout_sequences, weight_records (marks), segments (raw_file: where its steps lie; null: not kept).
-- `marks`: those that decide about some of its tokens, in the order of the engine's clock: a mark lies behind what decided, and a step behind
-- the mark. A mark of another machine is placed by the wall clocks. An engine's mark of no version says from which moment on its weights are unknown, and
-- those of all adapters with them.
WITH queued AS (
    SELECT * FROM version_queue WHERE mark <= $high
),
asked AS (
    SELECT r.run, r.segment_id, r.row FROM queued AS q JOIN rollout_sequences AS r ON r.run = q.run AND r.segment_id = q.segment_id
    UNION
    -- A mark matters to what was sampled after it; an hour is more than the clocks of machines differ.
    SELECT r.run, r.segment_id, r.row
    FROM queued AS q JOIN rollout_sequences AS r ON r.run = q.run AND len(r.decisions) > 0
    WHERE q.segment_id IS NULL AND CASE
        WHEN q.machine = r.machine THEN r.decisions[-1]."last" >= q.moment
        ELSE r.decisions[-1]."last"::HUGEINT + r.clock_offset >= q.wall - 3_600_000_000
    END
),
placed AS (
    SELECT r.run, r.segment_id, r.row, r.n_tokens, r.spans, r.decisions, w.version,
           CASE WHEN w.machine = r.machine THEN w.moment ELSE try_cast(epoch_us(w.applied_at)::HUGEINT - r.clock_offset AS BIGINT) END AS moment
    FROM asked AS a
    JOIN rollout_sequences AS r ON r.run = a.run AND r.segment_id = a.segment_id AND r.row = a.row
    JOIN weight_records AS w ON w.run = r.run AND w.moment IS NOT NULL
        AND (w.adapter IS NOT DISTINCT FROM r.adapter OR (w.version IS NULL AND w.adapter IS NULL))
        AND (w.replica IS NULL OR w.replica = r.replica OR w.replica = regexp_replace(r.replica, '-dp[0-9]+$', ''))
        AND CASE WHEN w.machine = r.machine THEN w.moment ELSE try_cast(epoch_us(w.applied_at)::HUGEINT - r.clock_offset AS BIGINT) END
            BETWEEN r.engine_started AND r.decisions[-1]."last"
),
late AS (
    SELECT run, segment_id, row, any_value(n_tokens) AS n_tokens, any_value(spans) AS spans, any_value(decisions) AS decisions,
           list({'moment': moment, 'version': version} ORDER BY moment) AS marks
    FROM placed
    WHERE len(list_filter(decisions, lambda d: d."last" >= moment AND coalesce(d."at" < moment, true))) > 0
    GROUP BY run, segment_id, row
)
SELECT l.*, s.raw_file
FROM late AS l LEFT JOIN segments AS s ON s.segment_id = l.segment_id
ORDER BY l.run, l.segment_id, l.row
