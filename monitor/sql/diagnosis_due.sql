-- Runs with steps that were computed since the run was last diagnosed, of which something was accepted or taken back, or on which an experiment finished since; the most
-- recent ones first. `document`: of the diagnosis there is; null: none yet. `decided`: somebody waits for it, or an alert began to fire at a
-- step that the diagnosis does not know. `firing`: an alert fires. `quiet`: for ten seconds and five times as long as its last steps took no
-- step was computed. Grain: run. Inputs: step_summaries, diagnoses, acceptances, experiments, alert_states. Parameters: $now.
WITH accepted AS (
    SELECT run, max(changed_at) AS changed_at
    FROM (
        SELECT run, greatest(accepted_at, coalesce(withdrawn_at, accepted_at)) AS changed_at FROM acceptances
        UNION ALL SELECT run, finished_at FROM experiments
    )
    GROUP BY run
), firing AS (
    SELECT run, max(started_step) AS step FROM alert_states WHERE phase = 'firing' GROUP BY run
), newest AS (
    SELECT run, max(step) AS step, max(revision) AS revision, max(computed_at) AS computed_at FROM step_summaries GROUP BY run
), pace AS (
    SELECT n.run, coalesce(epoch(max(s.time) - min(s.time)) / nullif(count(s.time) - 1, 0), 0) AS seconds
    FROM newest AS n JOIN step_summaries AS s ON s.run = n.run AND s.step > n.step - 10
    GROUP BY n.run
), news AS (
    SELECT n.run, n.step, n.revision, d.document, n.revision > coalesce(d.revision, -1) AS computed,
           coalesce(a.changed_at >= d.diagnosed_at, false) AS awaited,
           coalesce(f.step > d.step AND f.step <= n.step, false) AS alerted, f.run IS NOT NULL AS firing,
           epoch($now::TIMESTAMPTZ - n.computed_at) >= greatest(10, 5 * p.seconds) AS quiet
    FROM newest AS n
    JOIN pace AS p ON p.run = n.run
    LEFT JOIN diagnoses AS d ON d.run = n.run
    LEFT JOIN accepted AS a ON a.run = n.run
    LEFT JOIN firing AS f ON f.run = n.run
)
SELECT run, step, revision, document, awaited OR alerted AS decided, firing, quiet
FROM news
WHERE computed OR awaited
ORDER BY revision DESC
