-- Grain: one row per step of incoming (Arrow: run, step, place) that has step records; scalars are means over ranks. `step`: the place of
-- the step; see step_tables. Inputs: incoming, step_records. Parameters: the range of what is chosen, for the zone maps.
-- These replace what training records do not carry token by token. A rank's newest value counts, as in the view scalars, and of several that are
-- as new the largest; means add up in the order of values: which record came first must not matter. What a
-- correction reports is a mean over all tokens of the ranks and micro-batches that state it; a correction that is no such document
-- says nothing.
WITH records AS (
    SELECT t.*, i.place
    FROM step_records AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
    WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last
),
chosen AS (
    SELECT place, max(time) AS time FROM records GROUP BY place
),
told AS (
    SELECT place, rank, coalesce(time, TIMESTAMPTZ '-infinity') AS time, scalars['entropy'] AS entropy, scalars['reward'] AS reward
    FROM records
),
newest AS (
    SELECT place, rank, arg_max(entropy, (time, entropy)) AS entropy, arg_max(reward, (time, reward)) AS reward
    FROM told
    GROUP BY place, rank
),
means AS (
    SELECT place, avg(entropy ORDER BY entropy) AS entropy, avg(reward ORDER BY reward) AS reward
    FROM newest
    GROUP BY place
),
stated AS (
    SELECT place, CASE WHEN json_valid(correction) THEN correction END AS document FROM records WHERE correction IS NOT NULL
),
reports AS (
    SELECT place, try_cast(document ->> '$.report.tokens' AS DOUBLE) AS tokens,
           try_cast(document ->> '$.report.is_weight_mean' AS DOUBLE) AS weight,
           try_cast(document ->> '$.report.clipped_frac' AS DOUBLE) AS clipped
    FROM stated
),
corrections AS (
    SELECT place, sum(weight * tokens ORDER BY weight * tokens) / sum(tokens ORDER BY tokens) AS is_weight_mean,
           sum(clipped * tokens ORDER BY clipped * tokens) / sum(tokens ORDER BY tokens) AS clipped_frac
    FROM reports
    WHERE tokens > 0
    GROUP BY place
)
SELECT place AS step, entropy, reward, time, is_weight_mean, clipped_frac
FROM chosen LEFT JOIN means USING (place) LEFT JOIN corrections USING (place)
