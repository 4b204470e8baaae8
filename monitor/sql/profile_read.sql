-- A profile of the steps $first to $last of $run (both included; null: no bound) for the pair $pair. Grain: bucket, and step if
-- $per_step (else step is null: all of them together). Inputs: profiles; of folded steps, unless $per_step, the windows that lie
-- within these steps (folded_profiles).
WITH parts AS (
    SELECT step, bucket, n, sum_d, sum_abs_d, sum_k3
    FROM profiles
    WHERE run = $run AND pair = $pair AND dimension = $dimension
        AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
    UNION ALL
    SELECT NULL, bucket, n, sum_d, sum_abs_d, sum_k3
    FROM folded_profiles
    WHERE run = $run AND pair = $pair AND dimension = $dimension AND NOT $per_step
        AND first_step >= coalesce($first::BIGINT, first_step) AND last_step <= coalesce($last::BIGINT, last_step)
)
SELECT
    CASE WHEN $per_step THEN step END AS step, bucket,
    sum(n)::BIGINT AS n, sum(sum_d) AS sum_d, sum(sum_abs_d) AS sum_abs_d, sum(sum_k3) AS sum_k3
FROM parts
GROUP BY ALL
ORDER BY step, bucket NULLS LAST
