-- Raw files, oldest first. Grain: one row per file. Inputs: raw_files.
SELECT path, run, kind, min_step, max_step, rows, tokens, bytes, created_at, compacted, location
FROM raw_files
ORDER BY created_at, max_step NULLS FIRST, path
