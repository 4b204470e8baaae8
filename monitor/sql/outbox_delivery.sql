-- One delivery. Grain: one row or none. Inputs: deliveries, notifications.
SELECT d.status, d.last_error, n.run, n.rule, n.state
FROM deliveries AS d JOIN notifications AS n ON n.key = d.key
WHERE d.key = $key AND d.channel = $channel
