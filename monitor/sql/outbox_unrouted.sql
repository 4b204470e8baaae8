-- Notifications of which no deliveries were made yet, oldest first. Grain: one row per notification, at most $limit.
SELECT key, severity, document FROM notifications WHERE routed_at IS NULL ORDER BY number LIMIT $limit
