-- What the profiles of the steps $first to $last of $run rest on. Grain: column of $width steps. `steps` that finished, of these
-- `profiled`, and of these `kept`: with raw tokens when they were profiled; in tokens under the mask: `expected`, and `seen` by
-- the profile. Inputs: step_summaries, profiled_steps.
SELECT
    (s.step - $first) // $width AS "column",
    count(*) AS steps,
    count(*) FILTER (p.revision >= 0) AS profiled,
    count(*) FILTER (p.revision >= 0 AND p.tokens > 0) AS kept,
    sum(s.tokens)::BIGINT AS expected,
    coalesce(sum(p.tokens), 0)::BIGINT AS seen
FROM step_summaries AS s
LEFT JOIN profiled_steps AS p ON p.run = s.run AND p.step = s.step
WHERE s.run = $run AND s.step BETWEEN $first AND $last
GROUP BY ALL
ORDER BY ALL
