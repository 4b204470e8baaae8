-- All runs. Grain: run. Input: runs.
SELECT *
FROM runs
ORDER BY last_time DESC
