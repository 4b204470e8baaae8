-- Makes deliveries. Grain: one row per notification and channel. Inputs: incoming(key, channel); $now.
INSERT INTO deliveries (key, channel, next_at)
SELECT key, channel, $now FROM incoming
ON CONFLICT DO NOTHING
