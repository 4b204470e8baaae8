-- What happened to a run besides training: new weights in the engine, changed configurations, restarts.
-- Grain: event. Inputs: weight_records, config_records, health_records, step_summaries,
-- all_sequences. Parameters: $run.
-- An event that does not say its step is put at the first step that finished after it; null: no step has, yet.
-- The first document of a kind and replica is where the run began, not a change.
-- Of more than 2,000 updates the newest 2,000, and of all as many evenly: a chart cannot tell more apart, and a long run has one per step.
-- An attempt that trained steps again is at the first of them.
-- A restart is a collector that started again after the one before it (same component, rank and replica) had seen a step finish.
WITH updates AS (
    SELECT 'weights' AS kind, min(coalesce(applied_at, resumed_at, started_at, requested_at, time)) AS happened_at,
           min(step) AS own_step, version AS label, bool_and(cache_cleared) AS cache_cleared, min(pause_mode) AS pause_mode
    FROM weight_records WHERE run = $run GROUP BY version
), shown AS (
    SELECT * EXCLUDE (place, of) FROM (
        SELECT *, row_number() OVER (ORDER BY happened_at, label) AS place, count(*) OVER () AS of FROM updates
    ) WHERE place > of - 2000 OR place % (1 + of // 2000) = 0
), documents AS (
    SELECT kind, replica, fingerprint, min(time) AS happened_at
    FROM config_records WHERE run = $run AND kind NOT IN ('weight_layout', 'checkpoint') GROUP BY ALL
), changes AS (
    SELECT 'config' AS kind, happened_at, kind AS label
    FROM documents
    QUALIFY row_number() OVER (PARTITION BY kind, replica ORDER BY happened_at) > 1
), finished AS (
    SELECT step, time FROM step_summaries WHERE run = $run AND time IS NOT NULL
), starts AS (
    SELECT component, time, lag(time) OVER (PARTITION BY component, details ->> 'rank', details ->> 'replica' ORDER BY time) AS earlier
    FROM health_records WHERE run = $run AND event = 'started'
), restarts AS (
    SELECT 'restart' AS kind, time AS happened_at, component AS label FROM starts
    WHERE EXISTS (SELECT 1 FROM finished WHERE finished.time BETWEEN starts.earlier AND starts.time)
), attempts AS (
    SELECT 'restart' AS kind, min(began) AS happened_at, min(step) AS own_step, 'attempt' AS label
    FROM all_sequences WHERE run = $run AND repeated_by IS NOT NULL GROUP BY repeated_by
), events AS (
    SELECT * FROM shown UNION ALL BY NAME SELECT * FROM changes UNION ALL BY NAME SELECT * FROM restarts
    UNION ALL BY NAME SELECT * FROM attempts
), placed AS (
    -- Not by an ASOF join, which compares each event with each step as long as the events are few beside the steps.
    SELECT *, first_value(finished_step IGNORE NULLS) OVER (
        ORDER BY moment, finished_step NULLS FIRST ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    ) AS next_step
    FROM (
        SELECT *, happened_at AS moment, NULL::BIGINT AS finished_step FROM events
        UNION ALL BY NAME SELECT time AS moment, step AS finished_step FROM finished
    )
)
SELECT kind, label, happened_at, cache_cleared, pause_mode, coalesce(own_step, next_step) AS step
FROM placed
WHERE kind IS NOT NULL
QUALIFY kind != 'restart' OR row_number() OVER (PARTITION BY kind, label, step ORDER BY happened_at) = 1
ORDER BY happened_at, label
