-- Marks that name an engine which the run does not have. Grain: run and name. Inputs: weight_records, config_records (every watched engine
-- writes its configuration under its name). Parameters: $run (null: all). `engines`: the names there are; of data-parallel replicas the
-- name that they share counts too. A run whose engines are not known has no such marks.
WITH engines AS (
    SELECT DISTINCT run, replica FROM config_records WHERE kind = 'engine_config' AND run = coalesce($run, run)
), named AS (
    SELECT run, replica FROM engines WHERE replica IS NOT NULL
    UNION SELECT run, regexp_replace(replica, '-dp[0-9]+$', '') FROM engines WHERE replica IS NOT NULL
), known AS (
    SELECT run, coalesce(list(DISTINCT replica ORDER BY replica) FILTER (replica IS NOT NULL), []) AS engines
    FROM engines GROUP BY run
)
SELECT w.run, w.replica, count(*) AS marks, any_value(k.engines) AS engines
FROM weight_records AS w JOIN known AS k USING (run)
WHERE w.source = 'trainer' AND w.replica IS NOT NULL AND (w.run, w.replica) NOT IN (SELECT (run, replica) FROM named)
GROUP BY w.run, w.replica
ORDER BY w.run, w.replica
