-- Metrics of the newest step. Grain: metric. Input: metrics.
SELECT step, metric, value
FROM metrics
WHERE run = $run AND step = (SELECT max(step) FROM metrics WHERE run = $run)
ORDER BY metric
