-- alert_acknowledge: Notes who takes care of an episode, and until when (null: as long as it lasts). The first one stays; one for some time can be
-- replaced. Inputs: alert_acknowledgements.
INSERT INTO alert_acknowledgements (episode, author, reason, time, until)
VALUES ($episode, $author, $reason, $time, $until::TIMESTAMPTZ)
ON CONFLICT (episode) DO UPDATE
SET author = excluded.author, reason = excluded.reason, time = excluded.time, until = excluded.until
WHERE alert_acknowledgements.until IS NOT NULL

-- alert_acknowledged: Who takes care of what in $runs (a list). Grain: episode. Inputs: alert_acknowledgements, alert_states.
SELECT episode, author, reason, time, until
FROM alert_acknowledgements
WHERE episode IN (SELECT episode FROM alert_states WHERE list_contains($runs::VARCHAR[], run))

-- alert_advance: Says how far the rules have looked at runs. Grain: run. Inputs: incoming.
INSERT OR REPLACE INTO alert_cursors BY NAME SELECT run, step, rules FROM incoming

-- alert_audit: What people did about alerts, newest first, at most $count, of what begins with the run's name.
-- Grain: one thing done. Inputs: alert_audit.
SELECT time, author, action, subject, words
FROM alert_audit
WHERE starts_with(subject, $run)
ORDER BY number DESC
LIMIT $count

-- alert_audit_write: Notes what somebody did; what is asked again because a connection broke is noted once. Grain: one row. Inputs: its parts.
INSERT INTO alert_audit (time, author, action, subject, words)
SELECT $time, $author, $action, $subject, $words
WHERE NOT EXISTS (
    SELECT 1 FROM alert_audit
    WHERE author = $author AND action = $action AND subject = $subject AND words = $words
      AND time > $time::TIMESTAMPTZ - INTERVAL 10 SECONDS
)

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

-- alert_diagnoses: The latest diagnosis of each of $runs (a list) that has one. Grain: run. Input: diagnoses.
SELECT run, step, document FROM diagnoses WHERE list_contains($runs::VARCHAR[], run)

-- alert_engine: Whether $run has an engine. There is none if it never sent a record nor its configuration, no token ever had its log-prob, and no trainer
-- says that it uses one (as adapters do, but for `use_vllm`: false). Grain: one row. Inputs: segments, step_metrics, config_records.
SELECT EXISTS (SELECT 1 FROM segments WHERE run = $run AND kind = 'rollout')
    OR EXISTS (SELECT 1 FROM step_metrics WHERE run = $run AND metric = 'backend.coverage' AND value > 0)
    OR EXISTS (
        SELECT 1 FROM config_records
        WHERE run = $run AND (kind = 'engine_config' OR (
            kind = 'trainer_config' AND document ->> '$.framework' IS NOT NULL AND coalesce(document ->> '$.use_vllm', 'true') <> 'false'))
    ) AS in_use

-- alert_forget: Forgets the alerts of $run whose rule and slice, as "rule/slice", are in $names. Inputs: alert_states.
DELETE FROM alert_states WHERE run = $run AND list_contains($names, rule || '/' || slice)

-- alert_history: The transitions of $run (null: of all runs), by the time of their step. Grain: transition. Inputs: alert_transitions.
SELECT run, rule, slice, severity, step, time, before, after, reason, value, words
FROM alert_transitions
WHERE run = coalesce($run, run)
ORDER BY time, run, rule, slice, number

-- alert_list: How the alerts of $run (null: of all runs) stand, those that fire first and the worst of them first. `acknowledged_by`: who takes
-- care now; `acknowledged_until`: of a snooze. Grain: run, rule and slice. Inputs: alert_states, alert_acknowledgements.
SELECT run, rule, slice, severity, phase, alert_states.reason, step, started_step, changed_at, value, words, told, muted,
       if(told, episode, NULL) AS episode, if(until IS NULL OR until > now(), author, NULL) AS acknowledged_by,
       if(until > now(), until, NULL) AS acknowledged_until
FROM alert_states LEFT JOIN alert_acknowledgements USING (episode)
WHERE run = coalesce($run, run)
ORDER BY phase NOT IN ('firing', 'recovering'), list_position(['critical', 'warning', 'info'], severity), run, rule, slice

-- alert_load: The alerts of $runs (a list) as they were kept. Grain: run, rule and slice. Inputs: alert_states.
SELECT run, rule, slice, fingerprint, document FROM alert_states WHERE list_contains($runs::VARCHAR[], run)

-- alert_moved: Appends transitions; one that is known already is not written again. Inputs: incoming.
INSERT OR IGNORE INTO alert_transitions BY NAME SELECT * FROM incoming

-- alert_runs: Runs and how far the rules have looked at each. Grain: run. Inputs: step_summaries, segments, alert_cursors, alert_states, diagnoses,
-- controllers. `open`: alerts that people believe to fire, or that fire unsent. While `last_arrival`, `revision` (grows whenever a step of
-- the run was recomputed), `diagnosed_at` and `controlled_at` are the same, nothing of the run has changed that the rules look at.
-- `live_until`, `dated_ahead`: see live_runs. `newest_computed_at`: when the newest step was computed. `silenced`, `acknowledged`: whether there are any silences and acknowledgements. `incident`: whether
-- an incident of it is open. `cursor`: where the run went back to a checkpoint, before the steps that are trained again.
-- `returned_to`: the first steps that its returns to a checkpoint have trained again (null: it never returned).
WITH computed AS (
    SELECT run, max(step) AS newest_step, arg_max(computed_at, step) AS newest_computed_at, max(revision) AS revision
    FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run
), arrived AS (
    SELECT run, max(ingested_at) AS last_arrival FROM segments GROUP BY run
), standing AS (
    SELECT run, count(*) FILTER (told OR phase IN ('firing', 'recovering')) AS open FROM alert_states GROUP BY run
), resumed AS (
    SELECT run, arg_max(step, began) AS resumed_step, list(step) AS returned_to FROM returns GROUP BY run
), going_on AS (
    SELECT DISTINCT run, true AS incident FROM incidents WHERE closed_at IS NULL
), joined AS MATERIALIZED (  -- apart from what holds for all runs: planning one join of all took as long as everything else
    SELECT run, newest_step, newest_computed_at, computed.revision, last_arrival, diagnosed_at, controllers.updated_at AS controlled_at,
           if(alert_cursors.step > newest_step, least(alert_cursors.step, resumed_step - 1), alert_cursors.step) AS cursor, alert_cursors.rules, coalesce(open, 0) AS open, live_until,
           coalesce(dated_ahead, 0) AS dated_ahead,
           coalesce(incident, false) AS incident, returned_to
    FROM arrived
    LEFT JOIN computed USING (run)
    LEFT JOIN (SELECT run, live_until, dated_ahead FROM live_runs(NULL)) USING (run)
    LEFT JOIN alert_cursors USING (run)
    LEFT JOIN standing USING (run)
    LEFT JOIN going_on USING (run)
    LEFT JOIN resumed USING (run)
    LEFT JOIN diagnoses USING (run)
    LEFT JOIN controllers USING (run)
)
SELECT *, EXISTS (FROM alert_silences) AS silenced, EXISTS (FROM alert_acknowledgements) AS acknowledged
FROM joined
ORDER BY run

-- alert_save: Keeps alerts. Grain: run, rule and slice. Inputs: incoming.
INSERT OR REPLACE INTO alert_states BY NAME SELECT * FROM incoming

-- alert_series: The last $count measured values of $metric of $run up to step $last, oldest first, for a sparkline.
-- Grain: step. Inputs: step_metrics.
SELECT step, value FROM (
    SELECT step, value FROM step_metrics
    WHERE run = $run AND metric = $metric AND step <= $last AND value IS NOT NULL
    ORDER BY step DESC LIMIT $count
)
ORDER BY step

-- alert_silence: Adds a silence; asked for again under the same id, nothing changes.
INSERT OR IGNORE INTO alert_silences (id, matchers, author, reason, created_at, expires_at)
VALUES ($id, $matchers, $author, $reason, $created_at, $expires_at)

-- alert_silences: Silences that have not expired at $now, newest first. Grain: silence. Inputs: alert_silences.
SELECT id, matchers, author, reason, created_at, expires_at
FROM alert_silences
WHERE expires_at > $now::TIMESTAMPTZ
ORDER BY created_at DESC, id

-- alert_steps: Steps of each of $runs after its number in $after (null: all), oldest first, at most $count, up to the first that may still be receiving
-- data: one that was computed after $quiet_since, or waits for the engine's records. So steps are looked at in order, and each
-- only once it is complete. Grain: run and step. Inputs: step_summaries, runs_on_their_way.
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
SELECT run, step, time
FROM later
QUALIFY settled AND step < coalesce(min(step) FILTER (NOT settled) OVER (PARTITION BY run), 9223372036854775807)
    AND row_number() OVER (PARTITION BY run ORDER BY step) <= $count
ORDER BY run, step

-- alert_unsilence: Ends a silence at $now. Inputs: alert_silences.
UPDATE alert_silences SET expires_at = least(expires_at, $now::TIMESTAMPTZ) WHERE id = $id

-- alert_values: Values of the metrics $metrics in steps of $runs, each between its numbers in $first and $last. Grain: run, step and metric. Inputs:
-- step_metrics.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
)
SELECT m.run, step, metric, value
FROM step_metrics AS m JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
WHERE list_contains($metrics, metric) AND value IS NOT NULL
