-- Forgets nodes that were not heard of for $days days. Grain: one row. Input: relay_nodes.
DELETE FROM relay_nodes WHERE seen_at < $now::TIMESTAMPTZ - to_days($days::INTEGER)
