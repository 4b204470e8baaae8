-- The objects of a run that is being deleted are to be removed. Parameters: $run. Inputs: raw_files.
INSERT OR IGNORE INTO doomed_objects (url, since)
SELECT location, now() FROM raw_files WHERE location IS NOT NULL AND run = $run
