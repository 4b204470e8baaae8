-- Where raw files lie. Grain: one row per path of $paths that is a file. Inputs: raw_files.
SELECT path, location FROM raw_files WHERE path IN (SELECT unnest($paths::VARCHAR[]))
