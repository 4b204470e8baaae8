-- Steps, wide. Grain: one row per run and step. Inputs: step_summaries, step_metrics, step_records, the view scalars.
-- The columns after `revision` are one per metric and one per scalar (the mean over ranks, as in the view scalars), as of the last
-- refresh. `correction`: the newest of the lowest rank.
WITH records AS (
    SELECT * FROM step_records
    QUALIFY row_number() OVER (PARTITION BY run, step ORDER BY rank NULLS LAST, time DESC) = 1
),
means AS (
    SELECT run, step, map(list(name), list(value)) AS scalars FROM scalars GROUP BY run, step
),
known AS (
    SELECT run, step FROM step_summaries UNION SELECT run, step FROM records
)
SELECT
    k.run, k.step,
    any_value(coalesce(s.time, r.time)) AS time,
    any_value(s.tokens) AS tokens,
    any_value(s.sequences) AS sequences,
    any_value(r.correction) AS correction,
    any_value(s.computed_at) AS computed_at,
    any_value(s.revision) AS revision{columns}
FROM known AS k
LEFT JOIN step_summaries AS s ON s.run = k.run AND s.step = k.step
LEFT JOIN records AS r ON r.run = k.run AND r.step = k.step
LEFT JOIN means AS c ON c.run = k.run AND c.step = k.step
LEFT JOIN step_metrics AS m ON m.run = k.run AND m.step = k.step
GROUP BY k.run, k.step
