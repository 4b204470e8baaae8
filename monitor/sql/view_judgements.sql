-- How each run stands: its newest diagnosis, how far it is judged, and the alerts that fire, the worst first. How severe that is says
-- `logprobe.monitor.judgement`. `advice`: the diagnosis's, unless the controller objects to a correction.
-- `level`: of a run without a baseline, how K3 compares with what its setup should have; null: not known.
-- `spooled_at`: when the oldest record was written that waits in the spool; null: none has waited for long.
-- `judged_step`: the newest step that its diagnosis has seen; null: not judged yet. `steps_behind`: steps after it (null: none); `unjudged_at`: when the first
-- of these was recorded, or, where another clock dated it (see dated_ahead), computed. What was diagnosed of an older attempt, beyond the newest step of the
-- newest one, judges nothing.
-- Grain: run. Inputs: step_summaries, abandoned_steps, diagnoses, controllers, alert_states, acknowledgements, spooled.
WITH newest AS (
    SELECT run, max(step) AS newest_step FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run
), judged AS (
    SELECT run, d.step AS judged_step FROM diagnoses AS d JOIN newest USING (run) WHERE d.step <= newest_step
), behind AS (  -- nearly all steps are judged: only the others are counted one by one
    SELECT s.run, s.step, if(epoch(s.computed_at - s.time) > 900, s.computed_at, least(s.time, s.computed_at)) AS since
    FROM step_summaries AS s ANTI JOIN abandoned_steps USING (run, step) LEFT JOIN judged AS j ON j.run = s.run WHERE j.judged_step IS NULL OR s.step > j.judged_step
), late AS (
    SELECT run, count(DISTINCT step) AS steps_behind, min(since) AS unjudged_at FROM behind GROUP BY run
), firing AS (
    SELECT run, list({'rule': rule, 'severity': severity, 'started_step': started_step, 'started_at': changed_at,
                      'muted': muted, 'acknowledged_by': author}
                     ORDER BY list_position(['critical', 'warning', 'info'], severity), rule) AS alerts
    FROM alert_states LEFT JOIN acknowledgements USING (run, episode)
    WHERE phase IN ('firing', 'recovering') GROUP BY run
), held AS (
    SELECT run, true AS held FROM (SELECT run, if(json_valid(control), control, NULL) AS control FROM controllers)
    WHERE control ->> '$.objection' <> 'stopped'
      AND (control ->> '$.phase' NOT IN ('issued', 'applied') OR coalesce((control ->> '$.stopped')::BOOLEAN, false))
)
SELECT run, newest_step, unjudged_at, steps_behind, d.step AS judged_step, diagnosed_at, verdict, since_step, cause, share, urgency,
       if(held AND advice = 'enable', 'do_not_enable', advice) AS advice,
       if(verdict IN ('calibrating', 'watch') AND json_valid(document) AND document ->> '$.growth.verdict' = 'calibrating',
          document ->> '$.level.status', NULL) AS level,
       spooled.oldest_at AS spooled_at, alerts
FROM newest LEFT JOIN late USING (run) FULL JOIN firing USING (run) LEFT JOIN diagnoses AS d USING (run) LEFT JOIN held USING (run) LEFT JOIN spooled USING (run)
