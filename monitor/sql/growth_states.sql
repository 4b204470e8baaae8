-- From where the judgement of K3's growth in each of $runs goes on. Grain: run; null where it has not begun. `configs`: engine
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
