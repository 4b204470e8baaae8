-- Notes what nodes said of their queues. Grain: run and node. Input: incoming, with these columns, one row for each.
INSERT OR REPLACE INTO relay_nodes BY NAME
SELECT run, node, writer, seen_at::TIMESTAMPTZ AS seen_at, segments, bytes, oldest_seconds, clock_ahead_seconds, version, problem
FROM incoming
