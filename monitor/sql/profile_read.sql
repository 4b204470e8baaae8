-- A profile of the steps $first to $last of $run (both included; null: no bound) for the pair $pair. Grain: bucket, and step if
-- $per_step (else step is null: all of them together). Inputs: profiles.
SELECT
    CASE WHEN $per_step THEN step END AS step, bucket,
    sum(n)::BIGINT AS n, sum(sum_d) AS sum_d, sum(sum_abs_d) AS sum_abs_d, sum(sum_k3) AS sum_k3
FROM profiles
WHERE run = $run AND pair = $pair AND dimension = $dimension
    AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
GROUP BY ALL
ORDER BY step, bucket NULLS LAST
