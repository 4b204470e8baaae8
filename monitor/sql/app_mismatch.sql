-- app_mismatch_columns: What the profiles of the steps $first to $last of $run rest on. Grain: column of $width steps. `steps` that finished, of these
-- `profiled`, and of these `kept`: with raw tokens when they were profiled; in tokens under the mask: `expected`, and `seen` by
-- the profile. A folded step counts where its window lies within one column. Inputs: step_summaries, profiled_steps, folded_steps,
-- folded_profiles.
SELECT
    (s.step - $first) // $width AS "column",
    count(*) AS steps,
    count(*) FILTER (p.revision >= 0) AS profiled,
    count(*) FILTER (p.revision >= 0 AND p.tokens > 0 AND seen) AS kept,
    sum(s.tokens)::BIGINT AS expected,
    coalesce(sum(p.tokens) FILTER (seen), 0)::BIGINT AS seen
FROM (
    SELECT s.*, w.first_step IS NULL OR (w.first_step >= $first AND w.last_step <= $last
               AND (w.first_step - $first) // $width = (w.last_step - $first) // $width) AS seen
    FROM step_summaries AS s
    LEFT JOIN folded_steps AS f ON f.run = s.run AND f.step = s.step
    LEFT JOIN (SELECT DISTINCT run, first_step, last_step FROM folded_profiles) AS w
        ON w.run = f.run AND f.step BETWEEN w.first_step AND w.last_step
) AS s
LEFT JOIN profiled_steps AS p ON p.run = s.run AND p.step = s.step
WHERE s.run = $run AND s.step BETWEEN $first AND $last
GROUP BY ALL
ORDER BY ALL

-- app_mismatch_density: How tokens of $run spread over the log-ratio of the pair $pair, for the steps $first to $last. Grain: column of $width steps and
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

-- app_mismatch_profiled: How far the profiles of $run are. Grain: one row. It is another one whenever a step was profiled. Inputs: profiled_steps.
SELECT count(*) AS steps, max(step) AS last_step, max(revision) AS revision, sum(tokens)::BIGINT AS tokens
FROM profiled_steps WHERE run = $run

-- app_mismatch_tags: Names of the tags of training sequences of the steps $first to $last of $run, at most $most of them, the most frequent first.
-- Grain: name. Inputs: training_sequences.
SELECT name, count(*) AS sequences
FROM (
    SELECT unnest(map_keys(tags)) AS name
    FROM training_sequences WHERE run = $run AND step BETWEEN $first AND $last
)
GROUP BY name
ORDER BY sequences DESC, name
LIMIT $most

-- app_mismatch_window: The newest of the steps $first to $last of $run that have at most $most sequences together; one step at least. Grain: one row.
-- Folded steps, of which no sequences are kept, do not count; where there are no others it is the last step, with no sequences.
-- Inputs: step_summaries, folded_steps.
WITH counted AS (
    SELECT step, sequences, sum(sequences) OVER (ORDER BY step DESC) AS together
    FROM step_summaries
    WHERE run = $run AND step BETWEEN $first AND $last AND step NOT IN (SELECT step FROM folded_steps WHERE run = $run)
)
SELECT coalesce(min(step), $last) AS first, coalesce(max(step), $last) AS last, count(*) AS steps,
       coalesce(sum(sequences), 0)::BIGINT AS sequences
FROM counted WHERE together <= $most OR together = sequences
