-- Runs and how far the rules have looked at each. Grain: run. Inputs: step_summaries, segments, alert_cursors, alert_states, diagnoses,
-- controllers. `open`: alerts that people believe to fire, or that fire unsent. While `last_arrival`, `revision` (grows whenever a step of
-- the run was recomputed), `diagnosed_at` and `controlled_at` are the same, nothing of the run has changed that the rules look at.
-- `live`: see live_runs. `newest_computed_at`: when the newest step was computed. `silenced`, `acknowledged`: whether there are any silences and acknowledgements.
WITH computed AS (
    SELECT run, max(step) AS newest_step, arg_max(computed_at, step) AS newest_computed_at, max(revision) AS revision
    FROM step_summaries GROUP BY run
), arrived AS (
    SELECT run, max(ingested_at) AS last_arrival FROM segments GROUP BY run
), standing AS (
    SELECT run, count(*) FILTER (told OR phase IN ('firing', 'recovering')) AS open FROM alert_states GROUP BY run
)
SELECT run, newest_step, newest_computed_at, computed.revision, last_arrival, diagnosed_at, controllers.updated_at AS controlled_at,
       alert_cursors.step AS cursor, alert_cursors.rules, coalesce(open, 0) AS open, coalesce(live, false) AS live,
       EXISTS (FROM alert_silences) AS silenced, EXISTS (FROM alert_acknowledgements) AS acknowledged
FROM arrived
LEFT JOIN computed USING (run)
LEFT JOIN (SELECT run, live FROM live_runs(now())) USING (run)
LEFT JOIN alert_cursors USING (run)
LEFT JOIN standing USING (run)
LEFT JOIN diagnoses USING (run)
LEFT JOIN controllers USING (run)
ORDER BY run
