-- How long the weights that the steps of incoming (Arrow: run, step, place) produced took to reach the engines. Grain: one row per step,
-- version and replica, in seconds; `step`: the place of the step, see step_tables; null: a time is unknown, or clocks disagree so far that the end lies before the beginning. Inputs: incoming, weight_records.
-- Of several records of an engine about one version the one that was applied first counts: later ones are reloads. A version that no
-- engine has recorded is what the trainer says of it.
WITH records AS (
    SELECT
        -- Whoever knows of which step these weights are the result says it for all.
        min(step) OVER (PARTITION BY run, version) AS step,
        run, version, replica, source, requested_at, applied_at, resumed_at,
        least(requested_at, started_at) AS begun_at  -- the earlier one that is known
    FROM weight_records
    WHERE run IN (SELECT run FROM incoming) AND version IS NOT NULL
),
chosen AS (
    SELECT t.* EXCLUDE (step), i.place AS step, bool_or(source = 'engine') OVER (PARTITION BY t.run, version) AS seen_by_engines
    FROM records AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
),
applied AS (
    SELECT * FROM chosen
    WHERE (source = 'engine') = seen_by_engines
    QUALIFY row_number() OVER (PARTITION BY run, version, replica ORDER BY applied_at NULLS LAST, resumed_at NULLS LAST) = 1
),
begun AS (
    SELECT
        a.run, a.step, a.version, a.replica, a.requested_at, a.applied_at, a.resumed_at,
        least(any_value(a.begun_at), min(t.begun_at)) AS begun_at
    FROM applied AS a
    LEFT JOIN chosen AS t
        ON t.run = a.run AND t.version = a.version AND t.source = 'trainer' AND (t.replica IS NULL OR t.replica = a.replica)
    GROUP BY ALL
)
SELECT
    step,
    CASE WHEN applied_at >= begun_at THEN (epoch_us(applied_at) - epoch_us(begun_at)) / 1e6 END AS delay,
    CASE WHEN resumed_at >= begun_at THEN (epoch_us(resumed_at) - epoch_us(begun_at)) / 1e6 END AS resume_delay,
    CASE WHEN resumed_at >= requested_at THEN (epoch_us(resumed_at) - epoch_us(requested_at)) / 1e6 END AS pause
FROM begun
ORDER BY step, version, replica
