-- How each run stands: its newest diagnosis, and the alerts that fire, the worst first. How severe that is says
-- `logprobe.monitor.judgement`. `steps_behind`: computed steps that are not judged, the first at `unjudged_at`;
-- as in `judged_as_of`, growth is judged at every step and stands for the diagnosis as long as that knows its verdict.
-- Grain: run. Inputs: step_summaries, diagnoses, growth_now, alert_states, alert_acknowledgements.
WITH judged AS (
    SELECT d.run, if(d.step >= g.changed_step, greatest(g.step, d.step), d.step) AS step
    FROM diagnoses AS d LEFT JOIN growth_now AS g USING (run)
), computed AS (
    SELECT s.run, max(s.step) AS newest_step, any_value(j.step) AS judged_step, min(s.computed_at) FILTER (s.step > j.step) AS unjudged_at,
           count(*) FILTER (s.step > j.step) AS steps_behind
    FROM step_summaries AS s LEFT JOIN judged AS j USING (run) GROUP BY s.run
), firing AS (
    SELECT run, list({'rule': rule, 'slice': nullif(slice, ''), 'severity': severity, 'started_step': started_step, 'started_at': changed_at,
                      'muted': muted, 'acknowledged_by': if(until IS NULL OR until > now(), author, NULL)}
                     ORDER BY list_position(['critical', 'warning', 'info'], severity), rule, slice) AS alerts
    FROM alert_states LEFT JOIN alert_acknowledgements USING (episode)
    WHERE phase IN ('firing', 'recovering') GROUP BY run
)
SELECT run, newest_step, unjudged_at, steps_behind, coalesce(judged_step, d.step) AS judged_step, diagnosed_at, verdict, since_step, cause, share, urgency, advice, alerts
FROM computed FULL JOIN firing USING (run) LEFT JOIN diagnoses AS d USING (run)
