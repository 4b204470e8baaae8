-- Gaps of runs that let expect what the gap of $run should be: of $reference alone, or (null) of earlier runs whose engine
-- configurations and sampling params are those of $run and whose diagnosis is not bad; the newest first. `k3`: median of their first 200
-- measured steps. Grain: run. Inputs: config_records, step_metrics, step_summaries, diagnoses.
WITH setups AS (
    SELECT run, list_sort(list(DISTINCT fingerprint)) AS setup, min(time) AS began
    FROM config_records
    WHERE kind IN ('engine_config', 'sampling_params')
    GROUP BY run
), own AS (
    SELECT setup, began FROM setups WHERE run = $run
), others AS (
    SELECT s.run, s.began, coalesce(s.setup = (SELECT setup FROM own), false) AS same_setup
    FROM setups AS s
    LEFT JOIN diagnoses AS d USING (run)
    WHERE s.run <> $run
      AND CASE WHEN $reference IS NULL
               THEN s.setup = (SELECT setup FROM own) AND s.began < (SELECT began FROM own)
                    AND coalesce(d.verdict, 'healthy') NOT IN ('growing', 'critical')
               ELSE s.run = $reference END
), first_steps AS (
    SELECT o.run, o.began, o.same_setup, m.value
    FROM others AS o
    JOIN step_metrics AS m ON m.run = o.run AND m.metric = 'backend.k3_kl'
    WHERE m.value IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY o.run ORDER BY m.step) <= 200
)
SELECT run, same_setup, median(value) AS k3, count(*) AS steps
FROM first_steps
GROUP BY run, same_setup, began
ORDER BY began DESC
LIMIT 5
