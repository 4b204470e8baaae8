-- Steps of $run after $after (null: all), oldest first, at most $count, up to the first that may still be receiving data: one that
-- is dirty, was computed after $quiet_since, or waits for the engine's records. So steps are looked at in order, and each only once
-- it is complete. Both sides flush when they like, and the trainer's records may be here first. In a run whose engine sends any,
-- they are waited for until steps that came three later have theirs, or for two minutes; then they are missing for good.
-- Grain: step. Inputs: step_summaries, dirty_steps, training_sequences, segments.
WITH later AS (
    SELECT step, coalesce(time, computed_at) AS time,
           computed_at > $quiet_since::TIMESTAMPTZ - INTERVAL 2 MINUTES AS young,
           computed_at <= $quiet_since::TIMESTAMPTZ AND step NOT IN (SELECT step FROM dirty_steps WHERE run = $run) AS quiet
    FROM step_summaries
    WHERE run = $run AND ($after::BIGINT IS NULL OR step > $after::BIGINT)
), joined AS (
    SELECT step, bool_or(rollout_segment IS NOT NULL) AS any_joined,
           bool_or(rollout_source = 'missing' AND rollout_segment IS NULL) AS any_missing
    FROM training_sequences
    WHERE run = $run AND step >= (SELECT min(step) FROM later WHERE young)
    GROUP BY step
), waiting AS (
    SELECT step FROM joined
    WHERE any_missing AND step > coalesce((SELECT max(step) FROM joined WHERE any_joined) - 3, step - 1)
      AND EXISTS (SELECT 1 FROM segments WHERE run = $run AND kind = 'rollout')
), judged AS (
    SELECT step, time, quiet AND NOT (young AND step IN (SELECT step FROM waiting)) AS settled FROM later
)
SELECT step, time
FROM judged
WHERE settled AND step < coalesce((SELECT min(step) FROM judged WHERE NOT settled), 9223372036854775807)
ORDER BY step
LIMIT $count
