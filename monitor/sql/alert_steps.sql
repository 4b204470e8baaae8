-- Steps of $run after $after (null: all), oldest first, at most $count, up to the first that may still be receiving data: one that
-- is dirty, was computed after $quiet_since, or waits for the engine's records. So steps are looked at in order, and each only once
-- it is complete. Grain: step. Inputs: step_summaries, dirty_steps, steps_on_their_way.
WITH later AS (
    SELECT step, coalesce(time, computed_at) AS time,
           computed_at <= $quiet_since::TIMESTAMPTZ AND step NOT IN (SELECT step FROM dirty_steps WHERE run = $run)
           AND step NOT IN (SELECT step FROM steps_on_their_way($run, $quiet_since::TIMESTAMPTZ)) AS settled
    FROM step_summaries
    WHERE run = $run AND ($after::BIGINT IS NULL OR step > $after::BIGINT)
)
SELECT step, time
FROM later
WHERE settled AND step < coalesce((SELECT min(step) FROM later WHERE NOT settled), 9223372036854775807)
ORDER BY step
LIMIT $count
