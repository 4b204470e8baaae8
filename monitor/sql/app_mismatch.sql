-- app_mismatch_columns: What the profiles of the steps $first to $last of $run rest on. Grain: column of $width steps. `steps` that finished, of these
-- `profiled`, and of these `kept`: with raw tokens when they were profiled, and not frozen since; in tokens under the mask: `expected`, and `seen` by
-- the profile. Inputs: step_summaries.
SELECT
    (step - $first) // $width AS "column",
    count(*) AS steps,
    count(*) FILTER (profiled IS NOT NULL OR frozen_at IS NOT NULL) AS profiled,
    count(*) FILTER (profiled_tokens > 0) AS kept,
    sum(tokens)::BIGINT AS expected,
    coalesce(sum(profiled_tokens), 0)::BIGINT AS seen
FROM step_summaries
WHERE run = $run AND step BETWEEN $first AND $last
GROUP BY ALL
ORDER BY ALL

-- app_mismatch_density: How tokens of $run spread over the log-ratio of the pair $pair, for the steps $first to $last. Grain: column of $width steps and
-- bin. `bin` is the bucket of the profile `log_ratio` with $merge of them taken together, its sign that of d; null: broken
-- tokens. Inputs: profiles.
SELECT (step - $first) // $width AS "column", (sign(bucket) * ceil(abs(bucket) / $merge))::INTEGER AS bin, sum(n)::BIGINT AS tokens
FROM profiles
WHERE run = $run AND pair = $pair AND dimension = 'log_ratio' AND step BETWEEN $first AND $last
GROUP BY ALL
ORDER BY ALL

-- app_mismatch_profiled: How far the profiles of $run are. Grain: one row. It is another one whenever a step was profiled or frozen. Inputs: step_summaries.
SELECT count(*) AS steps, max(step) AS last_step, max(profiled) AS revision, sum(profiled_tokens)::BIGINT AS tokens
FROM step_summaries WHERE run = $run AND (profiled IS NOT NULL OR frozen_at IS NOT NULL)
