-- Of $runs (a list): K3 over the whole run, in at most 60 points evenly over its steps with the newest last; the newest mean weight lag of the last
-- 200 steps, and where the correction stands. Grain: run. Inputs: step_summaries, step_metrics, controllers.
WITH asked AS (
    SELECT run, min(step) AS first, max(step) AS last
    FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) WHERE list_contains($runs::VARCHAR[], run) GROUP BY run
), parts AS (
    SELECT m.run, (m.step - a.first) * 59 // greatest(a.last - a.first, 1) AS part, max_by(m.value, m.step) AS value
    FROM step_metrics AS m JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
    WHERE m.metric = 'backend.k3_kl' AND m.value IS NOT NULL
    GROUP BY m.run, part
), lines AS (
    SELECT run, list(value ORDER BY part) AS k3 FROM parts GROUP BY run
), lags AS (
    SELECT m.run, max_by(m.value, m.step) AS lag
    FROM step_metrics AS m JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.last - 199 AND a.last
    WHERE m.metric = 'weight_lag_mean' AND m.value IS NOT NULL
    GROUP BY m.run
)
SELECT run, k3, lag, control ->> '$.phase' AS correction, (control ->> '$.from_step')::BIGINT AS corrected_from
FROM asked LEFT JOIN lines USING (run) LEFT JOIN lags USING (run) LEFT JOIN controllers USING (run)
