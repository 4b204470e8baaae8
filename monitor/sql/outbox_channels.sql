-- How the channels are doing. Grain: one row per channel that was ever used. Inputs: deliveries.
SELECT
    channel,
    count(*) FILTER (status = 'sent') AS sent,
    count(*) FILTER (status = 'waiting') AS waiting,
    count(*) FILTER (status = 'dead') AS dead,
    max(finished_at) FILTER (status = 'sent') AS last_sent_at,
    arg_max(last_error, next_at) FILTER (status = 'waiting') AS last_error,
    min(next_at) FILTER (status = 'waiting') AS next_at
FROM deliveries
GROUP BY channel
ORDER BY channel
