-- How far each run with computed steps is judged, see judged_steps; `seconds_behind`: for how long the first step behind has waited;
-- `spooled_seconds`: for how long the oldest record in the spool has.
-- Grain: run. Parameters: $run (null: all), $now (null: now). Inputs: live_runs, judged_steps, spooled.
SELECT j.* EXCLUDE (unjudged_at), n.live,
       coalesce(greatest(epoch(coalesce($now::TIMESTAMPTZ, now()) - j.unjudged_at), 0), 0) AS seconds_behind,
       coalesce(greatest(epoch(coalesce($now::TIMESTAMPTZ, now()) - w.oldest_at), 0), 0) AS spooled_seconds
FROM judged_steps AS j JOIN live_runs(coalesce($now::TIMESTAMPTZ, now())) AS n ON n.run = j.run LEFT JOIN spooled AS w ON w.run = j.run
WHERE ($run IS NULL OR j.run = $run)
ORDER BY j.run
