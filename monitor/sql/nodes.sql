-- nodes_furthest: Of each of $runs that nodes ship: how many nodes, how far the one furthest behind is, what waits on all of them.
-- Grain: run. Input: nodes. Parameters: $runs. `behind_seconds` null: a node did not say; as in `nodes_of`.
SELECT run, count(*) AS nodes, coalesce(sum(segments), 0)::BIGINT AS segments, coalesce(sum(bytes), 0)::BIGINT AS bytes,
       max(if(segments = 0, 0.0, oldest_seconds + epoch(now()) - epoch(seen_at))) AS behind_seconds,
       max(epoch(now()) - epoch(seen_at)) AS silent_seconds
FROM nodes
WHERE run IN (SELECT unnest($runs::VARCHAR[]))
GROUP BY run
ORDER BY run

-- nodes_of: Nodes that ship $run, the one furthest behind first. Grain: node. Input: nodes. Parameters: $run, $now.
-- `behind_seconds`: age of the oldest segment that waits there, as far as is known: what waited when the node was heard last still
-- waits. 0: nothing did; null: the node did not say.
SELECT node, seen_at, epoch($now::TIMESTAMPTZ) - epoch(seen_at) AS silent_seconds, segments, bytes,
       if(segments = 0, 0.0, oldest_seconds + epoch($now::TIMESTAMPTZ) - epoch(seen_at)) AS behind_seconds,
       clock_ahead_seconds, version, problem
FROM nodes
WHERE run = $run
ORDER BY behind_seconds DESC NULLS FIRST, node

-- nodes_forget: Forgets nodes that were not heard of for $days days. Grain: one row. Input: nodes.
DELETE FROM nodes WHERE seen_at < $now::TIMESTAMPTZ - to_days($days::INTEGER)
