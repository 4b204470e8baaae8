-- Which runs have raw files of one $kind in the object store, and of which steps (null for rollout records). Grain: run. Inputs: raw_files.
SELECT run, min(min_step) AS first, max(max_step) AS last
FROM raw_files
WHERE location IS NOT NULL AND kind = $kind
GROUP BY run
