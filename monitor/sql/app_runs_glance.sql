-- Of $runs (a list): K3 of the last 60 measured ones of their last 200 steps, the newest mean weight lag, and where the correction stands.
-- Grain: run. Inputs: step_summaries, step_metrics, controllers.
WITH newest AS (
    SELECT run, max(step) AS step FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) WHERE list_contains($runs::VARCHAR[], run) GROUP BY run
), points AS (
    SELECT m.run, m.metric, m.step, m.value FROM step_metrics AS m JOIN newest AS n ON m.run = n.run AND m.step > n.step - 200
    WHERE m.metric IN ('backend.k3_kl', 'weight_lag_mean') AND m.value IS NOT NULL
)
SELECT run, list_slice(list(value ORDER BY points.step) FILTER (metric = 'backend.k3_kl'), -60, -1) AS k3,
       max_by(value, points.step) FILTER (metric = 'weight_lag_mean') AS lag,
       any_value(control ->> '$.phase') AS correction, any_value((control ->> '$.from_step')::BIGINT) AS corrected_from
FROM newest LEFT JOIN points USING (run) LEFT JOIN controllers USING (run)
GROUP BY run
