-- Forgets how the messages about $run were delivered. To be run before those are forgotten. Inputs: notifications.
DELETE FROM deliveries WHERE key IN (SELECT key FROM notifications WHERE run = $run)
