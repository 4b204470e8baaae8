-- Grain: one row per step of $steps of $run that has step records; scalars are means over ranks. Inputs: step_records, the view
-- scalars. These stand in for what training records do not carry token by token.
WITH chosen AS (
    SELECT step, max(time) AS time, list_distinct(flatten(list(map_keys(scalars)))) AS names
    FROM step_records
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
    GROUP BY step
),
means AS (
    SELECT step, any_value(value) FILTER (name = 'entropy') AS entropy, any_value(value) FILTER (name = 'reward') AS reward
    FROM scalars
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND name IN ('entropy', 'reward')
    GROUP BY step
)
SELECT step, entropy, reward, time, names FROM chosen LEFT JOIN means USING (step)
