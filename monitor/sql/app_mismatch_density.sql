-- How tokens of $run spread over the log-ratio of the pair $pair, for the steps $first to $last. Grain: column of $width steps and
-- bin. `bin` is the bucket of the profile `log_ratio` with $merge of them taken together, its sign that of d; null: broken
-- tokens. Inputs: profiles; of folded steps the windows that lie within one column (folded_profiles).
WITH parts AS (
    SELECT (step - $first) // $width AS "column", bucket, n
    FROM profiles
    WHERE run = $run AND pair = $pair AND dimension = 'log_ratio' AND step BETWEEN $first AND $last
    UNION ALL
    SELECT (first_step - $first) // $width, bucket, n
    FROM folded_profiles
    WHERE run = $run AND pair = $pair AND dimension = 'log_ratio' AND first_step >= $first AND last_step <= $last
        AND (first_step - $first) // $width = (last_step - $first) // $width
)
SELECT "column", (sign(bucket) * ceil(abs(bucket) / $merge))::INTEGER AS bin, sum(n)::BIGINT AS tokens
FROM parts
GROUP BY ALL
ORDER BY ALL
