-- The runs of this home. Grain: one row per run. Inputs: segments, raw_files, step_summaries, step_records.
WITH ledger AS (
    SELECT
        run,
        min(ingested_at) AS first_ingested_at,
        max(ingested_at) AS last_ingested_at,
        count(*) AS segments,
        count(DISTINCT writer) AS writers,
        coalesce(sum(rows) FILTER (kind IN ('training', 'statistics')), 0)::BIGINT AS sequences,
        coalesce(sum(tokens) FILTER (kind IN ('training', 'statistics')), 0)::BIGINT AS tokens,
        coalesce(sum(rows) FILTER (kind = 'rollout'), 0)::BIGINT AS rollouts
    FROM segments
    GROUP BY run
),
steps_seen AS (
    SELECT run, step, time FROM step_summaries
    UNION ALL SELECT run, step, time FROM step_records
),
steps_by_run AS (
    SELECT run, min(step) AS first_step, max(step) AS last_step, count(DISTINCT step) AS steps,
           min(time) AS first_time, max(time) AS last_time
    FROM steps_seen
    GROUP BY run
),
raw AS (
    SELECT run, count(*) AS raw_files, sum(bytes)::BIGINT AS raw_bytes FROM raw_files WHERE kind IN ('training', 'rollout') GROUP BY run
)
SELECT
    l.run, s.first_step, s.last_step, coalesce(s.steps, 0) AS steps, l.sequences, l.tokens, l.rollouts, l.writers, l.segments,
    coalesce(s.first_time, l.first_ingested_at) AS first_time,
    coalesce(s.last_time, l.last_ingested_at) AS last_time,
    l.last_ingested_at,
    coalesce(w.raw_files, 0) AS raw_files,
    coalesce(w.raw_bytes, 0) AS raw_bytes
FROM ledger AS l
LEFT JOIN steps_by_run AS s USING (run)
LEFT JOIN raw AS w USING (run)
