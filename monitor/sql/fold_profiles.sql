-- Profiles of the windows of $width steps that the steps of incoming lie in, as they are once these are folded. Grain: window, pair,
-- dimension and bucket. Inputs: incoming (Arrow: run, step), profiles, folded_profiles.
SELECT run, first_step, first_step + $width - 1 AS last_step, pair, dimension, bucket,
       sum(n)::BIGINT AS n, sum(sum_d) AS sum_d, sum(sum_abs_d) AS sum_abs_d, sum(sum_k3) AS sum_k3
FROM (
    SELECT run, floor(step / $width)::BIGINT * $width AS first_step, pair, dimension, bucket, n, sum_d, sum_abs_d, sum_k3
    FROM profiles
    WHERE step BETWEEN (SELECT min(step) FROM incoming) AND (SELECT max(step) FROM incoming)
        AND (run, step) IN (SELECT (run, step) FROM incoming)
    UNION ALL
    SELECT run, first_step, pair, dimension, bucket, n, sum_d, sum_abs_d, sum_k3
    FROM folded_profiles
    WHERE (run, first_step) IN (SELECT (run, floor(step / $width)::BIGINT * $width) FROM incoming)
)
GROUP BY ALL
ORDER BY run, first_step, pair, dimension, bucket
