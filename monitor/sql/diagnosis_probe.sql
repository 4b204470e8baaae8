-- What the live probe recorded, steps $first to $last of $run (both included; null: no bound); of each step the newest result.
-- Grain: step. Input: the view scalars.
SELECT step, any_value(value) FILTER (name = 'probe/k3') AS k3, any_value(value) FILTER (name = 'probe/tokens') AS tokens,
       any_value(value) FILTER (name = 'probe/cached_k3') AS cached_k3, any_value(value) FILTER (name = 'probe/uncached_k3') AS uncached_k3
FROM scalars
WHERE run = $run AND name LIKE 'probe/%'
    AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
GROUP BY step
HAVING k3 IS NOT NULL
ORDER BY step
