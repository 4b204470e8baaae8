-- Where the raw files of $run lie. Grain: one row. Inputs: raw_files.
SELECT count(*) FILTER (location IS NULL) AS files, coalesce(sum(bytes) FILTER (location IS NULL), 0)::BIGINT AS bytes,
       count(location) AS stored_files, coalesce(sum(bytes) FILTER (location IS NOT NULL), 0)::BIGINT AS stored_bytes
FROM raw_files
WHERE run = $run
