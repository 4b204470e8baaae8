-- Notes what a node said of its queue. Grain: one row. Inputs: its parts.
INSERT OR REPLACE INTO relay_nodes (run, node, writer, seen_at, segments, bytes, oldest_seconds, clock_ahead_seconds, version, problem)
VALUES ($run, $node, $writer, $seen_at::TIMESTAMPTZ, $segments, $bytes, $oldest_seconds, $clock_ahead_seconds, $version, $problem)
