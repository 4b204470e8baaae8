-- What the live probe of $run noted last. Grain: at most one row. Input: health_records.
SELECT event, message FROM health_records WHERE run = $run AND component = 'probe' ORDER BY time DESC LIMIT 1
