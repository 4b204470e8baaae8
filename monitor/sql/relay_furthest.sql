-- Of each of $runs that a relay ships: how many nodes, how far the one furthest behind is, what waits on all of them.
-- Grain: run. Input: relay_nodes. Parameters: $runs. `behind_seconds` null: a node did not say; as in `relay_nodes`.
SELECT run, count(*) AS nodes, coalesce(sum(segments), 0)::BIGINT AS segments, coalesce(sum(bytes), 0)::BIGINT AS bytes,
       max(if(segments = 0, 0.0, oldest_seconds + epoch(now()) - epoch(seen_at))) AS behind_seconds,
       max(epoch(now()) - epoch(seen_at)) AS silent_seconds
FROM relay_nodes
WHERE run IN (SELECT unnest($runs::VARCHAR[]))
GROUP BY run
ORDER BY run
