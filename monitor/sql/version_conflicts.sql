-- What engine and trainer say about the same tokens' weights, in tokens. Grain: run, where both say the version of any. `compared`: tokens of
-- which they do; `differing`: of these, where they say different ones; `engine_older`, `engine_newer`: of these, where the versions are
-- numbers. `first_step`, `last_step`: of those that differ. Inputs: step_summaries. Parameters: $run, $first, $last (both steps
-- included); null: all.
SELECT run, sum(versions_compared)::BIGINT AS compared, sum(versions_differing)::BIGINT AS differing, sum(engine_older)::BIGINT AS engine_older,
       sum(engine_newer)::BIGINT AS engine_newer, min(step) FILTER (versions_differing > 0) AS first_step,
       max(step) FILTER (versions_differing > 0) AS last_step
FROM step_summaries
WHERE versions_compared > 0 AND run = coalesce($run, run)
    AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
GROUP BY run
ORDER BY run
