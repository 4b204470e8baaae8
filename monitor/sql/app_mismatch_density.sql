-- How tokens of $run spread over the log-ratio of the pair $pair, for the steps $first to $last. Grain: column of $width steps and
-- bin. `bin` is the bucket of the profile `log_ratio` with $merge of them taken together, its sign that of d; null: broken
-- tokens. Inputs: profiles.
SELECT
    (step - $first) // $width AS "column",
    (sign(bucket) * ceil(abs(bucket) / $merge))::INTEGER AS bin,
    sum(n)::BIGINT AS tokens
FROM profiles
WHERE run = $run AND pair = $pair AND dimension = 'log_ratio' AND step BETWEEN $first AND $last
GROUP BY ALL
ORDER BY ALL
