-- Collectors that are known of $run. Grain: writer. Inputs: segments.
SELECT DISTINCT writer FROM segments WHERE run = $run ORDER BY writer
