-- What happened to a run besides training: new weights in the engine, changed configurations and learning rates, restarts.
-- Grain: event. Inputs: weight_records, config_records, step_records, health_records, step_summaries. Parameters: $run.
-- An event that does not say its step is put at the first step that finished after it; null: no step has, yet.
-- The first document of a kind and replica is where the run began, not a change.
-- A learning rate is a scalar that the newest step calls so, of the lowest rank. Steps on which it moves the same way are one event, `before` → `after`,
-- the last of them `until`; a leap of more than a fifth, and five times the movement before it, is an event of its own.
-- A restart is a collector that started anew after the one before it (same component, rank and replica) had seen a step finish.
WITH updates AS (
    SELECT 'weights' AS kind, min(coalesce(applied_at, resumed_at, started_at, requested_at, time)) AS happened_at,
           min(step) AS own_step, version AS label, bool_and(cache_cleared) AS cache_cleared, min(pause_mode) AS pause_mode
    FROM weight_records WHERE run = $run GROUP BY version
), documents AS (
    SELECT kind, replica, fingerprint, min(time) AS happened_at
    FROM config_records WHERE run = $run GROUP BY ALL
), changes AS (
    SELECT 'config' AS kind, happened_at, kind AS label
    FROM documents
    QUALIFY row_number() OVER (PARTITION BY kind, replica ORDER BY happened_at) > 1
), finished AS (
    SELECT step, time FROM step_summaries WHERE run = $run AND time IS NOT NULL
), newest AS (
    SELECT map_keys(scalars) AS names FROM step_records WHERE run = $run AND scalars IS NOT NULL ORDER BY step DESC LIMIT 1
), names AS (
    SELECT name FROM (SELECT unnest(names) AS name FROM newest) WHERE regexp_matches(name, '(^|/)(lr|learning_rate)$')
), entries AS (
    SELECT step, time, name AS label, scalars[name] AS value
    FROM step_records CROSS JOIN names
    WHERE run = $run
    QUALIFY row_number() OVER (PARTITION BY step, name ORDER BY rank NULLS LAST, time DESC) = 1
), rates AS (
    SELECT step, time, label, value AS after, lag(value) OVER in_order AS before, sign(after - before) AS way,
           if(after > 0 AND before > 0, abs(ln(after / before)), 0) AS size
    FROM entries WHERE value IS NOT NULL
    WINDOW in_order AS (PARTITION BY label ORDER BY step)
), turns AS (
    SELECT *, way IS DISTINCT FROM lag(way) OVER in_order
              OR (lag(size) OVER in_order > 0 AND size > greatest(0.2, 5 * lag(size) OVER in_order)) AS turned
    FROM rates
    WINDOW in_order AS (PARTITION BY label ORDER BY step)
), movements AS (
    SELECT *, count_if(turned) OVER (PARTITION BY label ORDER BY step) AS movement FROM turns
), moved AS (
    SELECT 'learning_rate' AS kind, min(time) AS happened_at, min(step) AS own_step, label, arg_min(before, step) AS before,
           arg_max(after, step) AS after, max(step) AS until
    FROM movements WHERE way != 0 GROUP BY label, movement
), starts AS (
    SELECT component, time, lag(time) OVER (PARTITION BY component, details ->> 'rank', details ->> 'replica' ORDER BY time) AS earlier
    FROM health_records WHERE run = $run AND event = 'started'
), restarts AS (
    SELECT 'restart' AS kind, time AS happened_at, component AS label FROM starts
    WHERE EXISTS (SELECT 1 FROM finished WHERE finished.time BETWEEN starts.earlier AND starts.time)
), events AS (
    SELECT * FROM updates UNION ALL BY NAME SELECT * FROM changes
    UNION ALL BY NAME SELECT * FROM moved UNION ALL BY NAME SELECT * FROM restarts
)
SELECT kind, label, happened_at, cache_cleared, pause_mode, before, after, until, coalesce(own_step, finished.step) AS step
FROM events ASOF LEFT JOIN finished ON events.happened_at <= finished.time
QUALIFY kind != 'restart' OR row_number() OVER (PARTITION BY kind, label, step ORDER BY happened_at) = 1
ORDER BY happened_at, label
