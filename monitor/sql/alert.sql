-- alert_acknowledged: Who takes care of what in $runs (a list). Grain: episode. Inputs: acknowledgements.
SELECT episode, author, reason FROM acknowledgements WHERE list_contains($runs::VARCHAR[], run)

-- alert_changes: What changed in $run last, up to step $last: the newest weights, the newest change of a configuration that was not its first, and
-- the newest recorder that began after another one of its component. Grain: kind of change, newest first.
-- Inputs: weight_records, config_records, health_records, step_summaries.
WITH upto AS (
    SELECT coalesce(max(time), now()) AS time FROM step_summaries WHERE run = $run AND step <= $last
), weights AS (
    SELECT coalesce(applied_at, time) AS time, concat('weights ', version) AS what
    FROM weight_records WHERE run = $run AND version IS NOT NULL
), configurations AS (
    SELECT min(time) AS time, concat_ws(' ', kind, 'changed', 'on ' || replica) AS what
    FROM config_records WHERE run = $run AND kind NOT IN ('weight_layout', 'checkpoint') GROUP BY kind, replica, fingerprint
    QUALIFY row_number() OVER (PARTITION BY kind, replica ORDER BY min(time)) > 1
), restarts AS (
    SELECT time, concat(component, ' restarted') AS what
    FROM health_records WHERE run = $run AND event = 'started'
    QUALIFY row_number() OVER (PARTITION BY component, details ->> '$.rank', details ->> '$.replica' ORDER BY time) > 1
), changes AS (
    SELECT 'weights' AS kind, * FROM weights
    UNION ALL SELECT 'configuration', * FROM configurations
    UNION ALL SELECT 'restart', * FROM restarts
)
SELECT kind, arg_max(what, changes.time) AS what, max(changes.time) AS time
FROM changes, upto
WHERE changes.time <= upto.time
GROUP BY kind
ORDER BY time DESC

-- alert_forget: Forgets the alerts of $run whose rule is in $rules. Inputs: alert_states.
DELETE FROM alert_states WHERE run = $run AND list_contains($rules, rule)

-- alert_history: Messages about the alerts of $run (null: of all runs), by the time of their step. Grain: message. Inputs: notifications.
SELECT run, rule, severity, step, time, state, (document ->> '$.value')::DOUBLE AS value, document ->> '$.summary' AS words
FROM notifications
WHERE run = coalesce($run, run) AND document ->> '$.undelivered' IS NULL AND rule NOT IN ('correction_controller', 'incident')
ORDER BY time, run, number

-- alert_list: How the alerts of $run (null: of all runs) stand, those that fire first and the worst of them first. `acknowledged_by`: who takes
-- care. Grain: run and rule. Inputs: alert_states, acknowledgements.
SELECT run, rule, severity, phase, step, started_step, changed_at, value, words, told, muted,
       if(told, episode, NULL) AS episode, author AS acknowledged_by
FROM alert_states LEFT JOIN acknowledgements USING (run, episode)
WHERE run = coalesce($run, run)
ORDER BY phase NOT IN ('firing', 'recovering'), list_position(['critical', 'warning', 'info'], severity), run, rule

-- alert_load: The alerts of $runs (a list) as they were kept. Grain: run and rule. Inputs: alert_states.
SELECT run, rule, document FROM alert_states WHERE list_contains($runs::VARCHAR[], run)

-- alert_runs: Which alerts each run has, see also runs_now. Grain: run. Inputs: segments, alert_states, diagnoses, incidents,
-- user_actions.
-- `rules`: their alerts as "rule/fingerprint" (null: none was looked at); `open`: alerts that users believe to fire, or that fire unsent;
-- `incident`: whether one of it is open. `silenced`, `acknowledged`: whether users ever did so.
-- While this and what runs_now says of a run are the same, nothing of it has changed that is looked at.
WITH standing AS (
    SELECT run, count(*) FILTER (told OR phase IN ('firing', 'recovering')) AS open, list(rule || '/' || fingerprint ORDER BY rule || '/' || fingerprint) AS rules
    FROM alert_states GROUP BY run
), going_on AS (
    SELECT DISTINCT run, true AS incident FROM incidents WHERE closed_at IS NULL
)
SELECT run, diagnosed_at, rules, coalesce(open, 0) AS open, coalesce(incident, false) AS incident,
       EXISTS (FROM user_actions WHERE action = 'silenced') AS silenced, EXISTS (FROM acknowledgements) AS acknowledged
FROM (SELECT DISTINCT run FROM segments)
LEFT JOIN standing USING (run)
LEFT JOIN going_on USING (run)
LEFT JOIN diagnoses USING (run)

-- alert_silences: Silences that have neither expired at $now nor been ended, newest first; that of a run alone ends with its deletion. Grain: silence.
-- Inputs: user_actions.
SELECT key AS id, runs AS run, what AS rule, author, words AS reason, time AS created_at, until AS expires_at
FROM user_actions AS s
WHERE action = 'silenced' AND until > $now::TIMESTAMPTZ AND NOT EXISTS (
    FROM user_actions AS e
    WHERE (e.action = 'silence ended' AND e.key = s.key) OR (e.action = 'run deleted' AND e.key = s.runs AND e.number > s.number)
)
ORDER BY time DESC, id

-- alert_steps: Steps of each of $runs after its number in $after (null: all), oldest first, at most $count, up to the first that may still be receiving
-- data: one that was computed after $quiet_since, or waits for the engine's records. So steps are looked at in order, and each
-- only once it is complete. `values`: of $metrics (null: none was measured). Grain: run and step. Inputs: step_summaries, step_metrics, runs_on_their_way.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($after::BIGINT[]) AS after
), later AS (
    SELECT s.run, s.step, coalesce(s.time, s.computed_at) AS time,
           s.computed_at <= $quiet_since::TIMESTAMPTZ AND w.step IS NULL AS settled
    FROM step_summaries AS s
    ANTI JOIN abandoned_steps USING (run, step)
    JOIN asked AS a ON a.run = s.run AND s.step > coalesce(a.after, s.step - 1)
    LEFT JOIN runs_on_their_way($runs::VARCHAR[], $quiet_since::TIMESTAMPTZ) AS w ON w.run = s.run AND w.step = s.step
)
SELECT c.run, c.step, any_value(c.time) AS time, list({'metric': m.metric, 'value': m.value}) FILTER (m.metric IS NOT NULL) AS "values"
FROM (
    SELECT run, step, time
    FROM later
    QUALIFY settled AND step < coalesce(min(step) FILTER (NOT settled) OVER (PARTITION BY run), 9223372036854775807)
        AND row_number() OVER (PARTITION BY run ORDER BY step) <= $count
) AS c
LEFT JOIN step_metrics AS m ON m.run = c.run AND m.step = c.step AND list_contains($metrics::VARCHAR[], m.metric) AND m.value IS NOT NULL
GROUP BY c.run, c.step
ORDER BY c.run, c.step

-- alert_told: What was sent about alerts of $runs (a list): of the newest message, and how many there were. `step`: the newest one of a
-- message. Grain: run and rule. Inputs: notifications.
SELECT run, rule, arg_max(episode, number) AS episode, arg_max(document ->> '$.level', number) AS level, arg_max(severity, number) AS severity,
       arg_max(document ->> '$.cause', number) AS cause, arg_max((document ->> '$.since_step')::BIGINT, number) AS since_step,
       count(*) AS count, max(step) AS step,
       coalesce(arg_max(state, number) FILTER (state IN ('firing', 'acknowledged')) = 'acknowledged', false) AS acknowledged
FROM notifications
WHERE list_contains($runs::VARCHAR[], run) AND document ->> '$.undelivered' IS NULL
GROUP BY run, rule
