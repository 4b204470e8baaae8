-- The objects of raw files that are about to cease to exist are to be removed. Inputs: incoming (Arrow: path), raw_files.
INSERT OR IGNORE INTO doomed_objects (url, since)
SELECT location, now() FROM raw_files WHERE location IS NOT NULL AND path IN (SELECT path FROM incoming)
