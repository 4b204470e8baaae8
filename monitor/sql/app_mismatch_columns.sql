-- What the profiles of the steps $first to $last of $run rest on. Grain: column of $width steps. `steps` that finished, of these
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
