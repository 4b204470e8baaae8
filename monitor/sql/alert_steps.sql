-- Steps of each of $runs after its number in $after (null: all), oldest first, at most $count, up to the first that may still be receiving
-- data: one that is dirty, was computed after $quiet_since, or waits for the engine's records. So steps are looked at in order, and each
-- only once it is complete. Grain: run and step. Inputs: step_summaries, dirty_steps, runs_on_their_way.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($after::BIGINT[]) AS after
), later AS (
    SELECT s.run, s.step, coalesce(s.time, s.computed_at) AS time,
           s.computed_at <= $quiet_since::TIMESTAMPTZ AND d.step IS NULL AND w.step IS NULL AS settled
    FROM step_summaries AS s
    JOIN asked AS a ON a.run = s.run AND s.step > coalesce(a.after, s.step - 1)
    LEFT JOIN (SELECT DISTINCT run, step FROM dirty_steps) AS d ON d.run = s.run AND d.step = s.step
    LEFT JOIN runs_on_their_way($runs::VARCHAR[], $quiet_since::TIMESTAMPTZ) AS w ON w.run = s.run AND w.step = s.step
)
SELECT run, step, time
FROM later
QUALIFY settled AND step < coalesce(min(step) FILTER (NOT settled) OVER (PARTITION BY run), 9223372036854775807)
    AND row_number() OVER (PARTITION BY run ORDER BY step) <= $count
ORDER BY run, step
