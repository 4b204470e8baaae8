-- Marks notifications as routed. Grain: one row per key in $keys.
UPDATE notifications SET routed_at = $now WHERE key IN (SELECT unnest($keys))
