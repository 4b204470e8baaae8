-- relay_furthest: Of each of $runs that a relay ships: how many nodes, how far the one furthest behind is, what waits on all of them.
-- Grain: run. Input: relay_nodes. Parameters: $runs. `behind_seconds` null: a node did not say; as in `relay_nodes`.
SELECT run, count(*) AS nodes, coalesce(sum(segments), 0)::BIGINT AS segments, coalesce(sum(bytes), 0)::BIGINT AS bytes,
       max(if(segments = 0, 0.0, oldest_seconds + epoch(now()) - epoch(seen_at))) AS behind_seconds,
       max(epoch(now()) - epoch(seen_at)) AS silent_seconds
FROM relay_nodes
WHERE run IN (SELECT unnest($runs::VARCHAR[]))
GROUP BY run
ORDER BY run

-- relay_node_write: Notes what nodes said of their queues. Grain: run and node. Input: incoming, with these columns, one row for each.
INSERT OR REPLACE INTO relay_nodes BY NAME
SELECT run, node, writer, seen_at::TIMESTAMPTZ AS seen_at, segments, bytes, oldest_seconds, clock_ahead_seconds, version, problem
FROM incoming

-- relay_nodes: Nodes whose relays ship $run, the one furthest behind first. Grain: node. Input: relay_nodes. Parameters: $run, $now.
-- `behind_seconds`: age of the oldest segment that waits there, as far as is known: what waited when the node was heard last still
-- waits. 0: nothing did; null: the node did not say.
SELECT node, writer, seen_at, epoch($now::TIMESTAMPTZ) - epoch(seen_at) AS silent_seconds, segments, bytes,
       if(segments = 0, 0.0, oldest_seconds + epoch($now::TIMESTAMPTZ) - epoch(seen_at)) AS behind_seconds,
       clock_ahead_seconds, version, problem
FROM relay_nodes
WHERE run = $run
ORDER BY behind_seconds DESC NULLS FIRST, node

-- relay_nodes_forget: Forgets nodes that were not heard of for $days days. Grain: one row. Input: relay_nodes.
DELETE FROM relay_nodes WHERE seen_at < $now::TIMESTAMPTZ - to_days($days::INTEGER)
