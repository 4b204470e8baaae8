-- What changed in $run last, up to step $last: the newest weights, the newest change of a configuration that was not its first, and
-- the newest recorder that began after another one of its component. Grain: kind of change, newest first.
-- Inputs: weight_records, config_records, health_records, step_summaries.
WITH upto AS (
    SELECT coalesce(max(time), now()) AS time FROM step_summaries WHERE run = $run AND step <= $last
), weights AS (
    SELECT coalesce(applied_at, time) AS time, concat('weights ', version) AS what
    FROM weight_records WHERE run = $run AND version IS NOT NULL
), configurations AS (
    SELECT min(time) AS time, concat_ws(' ', kind, 'changed', 'on ' || replica) AS what
    FROM config_records WHERE run = $run AND kind <> 'weight_layout' GROUP BY kind, replica, fingerprint
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
