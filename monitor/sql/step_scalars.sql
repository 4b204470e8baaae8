-- Grain: one row per step of $steps of $run that has step records; scalars averaged over ranks. Inputs: step_records.
-- These stand in for what training records do not carry token by token.
SELECT step, avg(scalars['entropy']) AS entropy, avg(scalars['reward']) AS reward, max(time) AS time,
       list_distinct(flatten(list(map_keys(scalars)))) AS names
FROM step_records
WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
GROUP BY step
