-- Runs with steps that were computed since the run was last diagnosed, of which something was accepted or taken back, or on which an experiment finished since; the most
-- recent ones first. `document`: of the diagnosis there is; null: none yet. `awaited`: somebody waits for it. `changed`: growth is judged
-- otherwise since, or an alert began to fire, at a step that the diagnosis does not know. `live`: see live_runs.
-- Grain: run. Inputs: live_runs, growth_now, diagnoses, acceptances, experiments, alert_states. Parameters: $now.
WITH accepted AS (
    SELECT run, max(changed_at) AS changed_at
    FROM (
        SELECT run, greatest(accepted_at, coalesce(withdrawn_at, accepted_at)) AS changed_at FROM acceptances
        UNION ALL SELECT run, finished_at FROM experiments
    )
    GROUP BY run
), firing AS (
    SELECT run, max(started_step) AS step FROM alert_states WHERE phase = 'firing' GROUP BY run
), news AS (
    SELECT n.run, n.step, n.revision, n.live, d.document, n.revision > coalesce(d.revision, -1) AS computed,
           coalesce(a.changed_at >= d.diagnosed_at, false) AS awaited,
           coalesce(f.step > d.step AND f.step <= n.step, false) OR coalesce(g.changed_step > d.step, false) AS changed
    FROM live_runs($now::TIMESTAMPTZ) AS n
    LEFT JOIN diagnoses AS d ON d.run = n.run
    LEFT JOIN growth_now AS g ON g.run = n.run
    LEFT JOIN accepted AS a ON a.run = n.run
    LEFT JOIN firing AS f ON f.run = n.run
)
SELECT run, step, revision, live, document, awaited, changed
FROM news
WHERE computed OR awaited
ORDER BY revision DESC
