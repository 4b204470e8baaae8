-- Nodes whose relays ship $run, the one furthest behind first. Grain: node. Input: relay_nodes. Parameters: $run, $now.
-- `behind_seconds`: age of the oldest segment that waits there, as far as is known: what waited when the node was heard last still
-- waits. 0: nothing did; null: the node did not say.
SELECT node, writer, seen_at, epoch($now::TIMESTAMPTZ) - epoch(seen_at) AS silent_seconds, segments, bytes,
       if(segments = 0, 0.0, oldest_seconds + epoch($now::TIMESTAMPTZ) - epoch(seen_at)) AS behind_seconds,
       clock_ahead_seconds, version, problem
FROM relay_nodes
WHERE run = $run
ORDER BY behind_seconds DESC NULLS FIRST, node
