-- Steps that were computed again since they were profiled, the oldest first. Grain: run and step, at most $steps, and no more than
-- reach $tokens together. `profiled`: tokens of the profile there is (0: none). Inputs: step_summaries, profiled_steps.
-- Parameters: $steps, $tokens, $resting (runs that are left alone for now).
SELECT s.run, s.step, s.revision, coalesce(p.tokens, 0) AS profiled
FROM step_summaries AS s
LEFT JOIN profiled_steps AS p ON p.run = s.run AND p.step = s.step
WHERE (p.revision IS NULL OR p.revision < s.revision) AND NOT list_contains($resting, s.run)
QUALIFY sum(s.tokens) OVER (ORDER BY s.run, s.step) - s.tokens < $tokens
ORDER BY s.run, s.step
LIMIT $steps
