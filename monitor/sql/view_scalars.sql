-- Scalars of step records. Grain: one row per run, step and name. Input: step_records.
-- `value`: mean over the ranks that reported it, of each rank's newest value; `lowest` and `highest` of these, over `ranks` ranks.
WITH entries AS (
    SELECT run, step, rank, time, unnest(map_entries(scalars)) AS entry FROM step_records
),
newest AS (
    SELECT run, step, rank, entry.key AS name, arg_max(entry.value, coalesce(time, TIMESTAMPTZ '-infinity')) AS value
    FROM entries GROUP BY ALL
)
SELECT run, step, name, avg(value) AS value, min(value) AS lowest, max(value) AS highest, count(*)::INTEGER AS ranks
FROM newest
GROUP BY run, step, name
