-- Files and objects that the store names for $run, relative to the home. `location` null: on the disk. Grain: file. Inputs: raw_files,
-- quarantine.
SELECT path, location FROM raw_files WHERE run = $run
UNION ALL
SELECT path, NULL FROM quarantine WHERE run = $run
ORDER BY path
