-- Where raw files lie. Grain: one row per row of incoming (Arrow: path) that is a file. Inputs: incoming, raw_files.
SELECT r.path, r.location FROM raw_files AS r SEMI JOIN incoming AS i ON i.path = r.path ORDER BY r.path
