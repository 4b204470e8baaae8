-- fleet_noted: What the audit says of a move of $run: of doing $action, with words that begin with $move. Grain: one row. Inputs: alert_audit.
SELECT words FROM alert_audit WHERE subject = $run AND action = $action AND starts_with(words, $move)

-- fleet_nodes: What relays that still send to this home have said of moved $runs (a list). Grain: node of a run. Inputs: relay_nodes.
SELECT run, node, writer, seen_at, segments, bytes, oldest_seconds, clock_ahead_seconds, version, problem
FROM relay_nodes WHERE list_contains($runs::VARCHAR[], run)

-- fleet_nodes_forget: Takes these out; the home that has the run knows them. Inputs: relay_nodes.
DELETE FROM relay_nodes WHERE list_contains($runs::VARCHAR[], run)

-- fleet_writers: The first segment of every writer with data, as its name in the spool. Grain: writer of a run. Inputs: segments.
SELECT run, writer, min_by(segment_id, sequence) AS first FROM segments
WHERE kind IN ('training', 'statistics', 'rollout', 'step') AND NOT starts_with(writer, 'probe-') GROUP BY run, writer ORDER BY ALL
