-- How each run stands: its newest diagnosis, how far it is judged (see judged_steps), and the alerts that fire, the worst first. How severe that is says
-- `logprobe.monitor.judgement`. `advice`: the diagnosis's, unless the controller objects to a correction.
-- `level`: of a run without a baseline, how K3 compares with what its setup should have; null: not known.
-- `spooled_at`: when the oldest record was written that waits in the spool; null: none has waited for long.
-- Grain: run. Inputs: judged_steps, diagnoses, controllers, alert_states, alert_acknowledgements, spooled.
WITH firing AS (
    SELECT run, list({'rule': rule, 'severity': severity, 'started_step': started_step, 'started_at': changed_at,
                      'muted': muted, 'acknowledged_by': author}
                     ORDER BY list_position(['critical', 'warning', 'info'], severity), rule) AS alerts
    FROM alert_states LEFT JOIN alert_acknowledgements USING (episode)
    WHERE phase IN ('firing', 'recovering') GROUP BY run
), held AS (
    SELECT run, true AS held FROM (SELECT run, if(json_valid(control), control, NULL) AS control FROM controllers)
    WHERE control ->> '$.objection' <> 'stopped'
      AND (control ->> '$.phase' NOT IN ('issued', 'applied') OR coalesce((control ->> '$.stopped')::BOOLEAN, false))
)
SELECT run, newest_step, unjudged_at, steps_behind, coalesce(judged_step, d.step) AS judged_step, diagnosed_at, verdict, since_step, cause, share, urgency,
       if(held AND advice = 'enable', 'do_not_enable', advice) AS advice,
       if(verdict = 'calibrating' AND json_valid(document), document ->> '$.level.status', NULL) AS level,
       spooled.oldest_at AS spooled_at, alerts
FROM judged_steps FULL JOIN firing USING (run) LEFT JOIN diagnoses AS d USING (run) LEFT JOIN held USING (run) LEFT JOIN spooled USING (run)
