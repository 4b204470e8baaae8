-- app_mismatch_quantiles: Quantiles of the log-ratio of the pair $pair in $run, and what they rest on. Grain: column of $width of the steps $first to $last.
-- `steps` that finished, of these `profiled`, and of these `kept`: with raw tokens when they were profiled, and not frozen since; in tokens under the
-- mask: `expected`, `seen` by the profile, of these `drawn` with a log-ratio, and `broken`. `p1` to `p99`: buckets of the profile `log_ratio`, null without
-- a token. Inputs: step_summaries, profiles.
WITH cells AS (
    SELECT (step - $first) // $width AS "column", bucket, sum(n)::BIGINT AS tokens
    FROM profiles
    WHERE run = $run AND pair = $pair AND dimension = 'log_ratio' AND step BETWEEN $first AND $last
    GROUP BY ALL
), ranked AS (
    SELECT "column", bucket, sum(tokens) OVER (PARTITION BY "column" ORDER BY bucket) AS reached, sum(tokens) OVER (PARTITION BY "column") AS drawn
    FROM cells WHERE bucket IS NOT NULL
), quantiles AS (
    SELECT "column", max(drawn)::BIGINT AS drawn, min(bucket) FILTER (reached >= 0.01 * drawn) AS p1,
           min(bucket) FILTER (reached >= 0.1 * drawn) AS p10, min(bucket) FILTER (reached >= 0.5 * drawn) AS p50,
           min(bucket) FILTER (reached >= 0.9 * drawn) AS p90, min(bucket) FILTER (reached >= 0.99 * drawn) AS p99
    FROM ranked GROUP BY "column"
), basis AS (
    SELECT (step - $first) // $width AS "column", count(*) AS steps,
           count(*) FILTER (profiled IS NOT NULL OR frozen_at IS NOT NULL) AS profiled, count(*) FILTER (profiled_tokens > 0) AS kept,
           sum(tokens)::BIGINT AS expected, coalesce(sum(profiled_tokens), 0)::BIGINT AS seen
    FROM step_summaries
    WHERE run = $run AND step BETWEEN $first AND $last
    GROUP BY ALL
)
SELECT b."column", steps, profiled, kept, expected, seen, coalesce(drawn, 0) AS drawn, coalesce(c.tokens, 0) AS broken, p1, p10, p50, p90, p99
FROM basis AS b LEFT JOIN quantiles USING ("column") LEFT JOIN cells AS c ON c."column" = b."column" AND c.bucket IS NULL
ORDER BY b."column"

-- app_mismatch_profiled: How far the profiles of $run are. Grain: one row. It is another one whenever a step was profiled or frozen. Inputs: step_summaries.
SELECT count(*) AS steps, max(step) AS last_step, max(profiled) AS revision, sum(profiled_tokens)::BIGINT AS tokens
FROM step_summaries WHERE run = $run AND (profiled IS NOT NULL OR frozen_at IS NOT NULL)
