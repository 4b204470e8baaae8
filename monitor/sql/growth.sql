-- growth_changed: Which of $runs had a step between its numbers in $first and $last computed again with another K3 (beyond rounding), or for the first
-- time. Grain: run. Inputs: step_summaries, step_growth, step_metrics.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
)
SELECT DISTINCT a.run
FROM asked AS a
JOIN step_summaries AS s ON s.run = a.run AND s.step BETWEEN a.first AND a.last
LEFT JOIN step_growth AS j ON j.run = s.run AND j.step = s.step
LEFT JOIN step_metrics AS m ON m.run = s.run AND m.step = s.step AND m.metric = 'backend.k3_kl'
WHERE j.step IS NULL OR (j.value IS NULL) <> (m.value IS NULL) OR abs(j.value - m.value) > 1e-9 * abs(m.value)

-- growth_due: Runs with steps that were computed since their growth was judged last. Grain: run. `live_until`: see live_runs. `judged`: whether it ever was;
-- `step`, `verdict`, `changed_step`: of that judgement. Inputs: live_runs, growth_now.
SELECT n.run, n.live_until, g.run IS NOT NULL AS judged, g.step, g.verdict, g.changed_step
FROM live_runs(NULL) AS n
LEFT JOIN growth_now AS g ON g.run = n.run
WHERE n.revision > coalesce(g.revision, -1)
ORDER BY n.revision DESC

-- growth_setups: What engine and trainer of each of $runs said of their precision and model. Grain: run, kind, fingerprint. `sequences`: always 0, whether any
-- rollout names it is not looked up. Inputs: config_records.
SELECT run, kind, fingerprint, any_value(document ORDER BY time DESC) AS document, 0::BIGINT AS sequences
FROM config_records
WHERE list_contains($runs::VARCHAR[], run) AND kind IN ('engine_config', 'trainer_config')
GROUP BY run, kind, fingerprint
ORDER BY run, min(time), fingerprint

-- growth_states: From where the judgement of K3's growth in each of $runs goes on. Grain: run; null where it has not begun. `configs`: engine
-- configurations recorded. `newest`: of all its steps. `first_touched`: the first of the steps judged before that was computed again since
-- then. Inputs: growth_states, step_summaries, config_records.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run
),
touched AS (
    SELECT g.run, min(s.step) AS first_touched
    FROM growth_states AS g JOIN step_summaries AS s ON s.run = g.run AND s.step <= g.step AND s.revision > g.revision
    WHERE list_contains($runs::VARCHAR[], g.run)
    GROUP BY g.run
),
computed AS (
    SELECT run, max(revision) AS newest FROM step_summaries WHERE list_contains($runs::VARCHAR[], run) GROUP BY run
),
configured AS (
    SELECT run, count(DISTINCT fingerprint) AS configs
    FROM config_records
    WHERE kind = 'engine_config' AND list_contains($runs::VARCHAR[], run)
    GROUP BY run
)
SELECT a.run, g.step, g.rule, g.changes, g.state, coalesce(n.newest, -1) AS newest, coalesce(c.configs, 0) AS configs, t.first_touched
FROM asked AS a
LEFT JOIN computed AS n ON n.run = a.run
LEFT JOIN growth_states AS g ON g.run = a.run
LEFT JOIN touched AS t ON t.run = a.run
LEFT JOIN configured AS c ON c.run = a.run

-- growth_values: K3 of the steps of $runs, each between its numbers in $first and $last. Grain: run and step; the value is null where K3 was not measured.
-- Inputs: step_summaries, abandoned_steps, step_metrics.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
),
measured AS (
    SELECT m.run, m.step, m.value
    FROM step_metrics AS m JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
    WHERE m.metric = 'backend.k3_kl'
)
SELECT s.run, s.step, m.value
FROM step_summaries AS s
ANTI JOIN abandoned_steps USING (run, step)
JOIN asked AS a ON a.run = s.run AND s.step BETWEEN a.first AND a.last
LEFT JOIN measured AS m ON m.run = s.run AND m.step = s.step
ORDER BY s.run, s.step

-- growth_window: How K3's growth was judged at steps of $runs, each between its numbers in $first and $last. Grain: run and step. Inputs: step_growth.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
)
SELECT j.run, step, verdict, baseline, ratio, since_step, doubling_steps, reasons
FROM step_growth AS j JOIN asked AS a ON a.run = j.run AND j.step BETWEEN a.first AND a.last
ORDER BY j.run, step
