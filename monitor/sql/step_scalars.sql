-- Grain: one row per step of $steps of $run that has step records; scalars are means over ranks. Inputs: step_records, the view
-- scalars. These stand in for what training records do not carry token by token. What a correction reports is a mean over all
-- tokens of the ranks and micro-batches that state it; a correction that is no such document says nothing.
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
),
stated AS (
    SELECT step, CASE WHEN json_valid(correction) THEN correction END AS document
    FROM step_records
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND correction IS NOT NULL
),
reports AS (
    SELECT step, try_cast(document ->> '$.report.tokens' AS DOUBLE) AS tokens,
           try_cast(document ->> '$.report.is_weight_mean' AS DOUBLE) AS weight,
           try_cast(document ->> '$.report.clipped_frac' AS DOUBLE) AS clipped
    FROM stated
),
corrections AS (
    SELECT step, sum(weight * tokens) / sum(tokens) AS is_weight_mean, sum(clipped * tokens) / sum(tokens) AS clipped_frac
    FROM reports
    WHERE tokens > 0
    GROUP BY step
)
SELECT step, entropy, reward, time, names, is_weight_mean, clipped_frac
FROM chosen LEFT JOIN means USING (step) LEFT JOIN corrections USING (step)
