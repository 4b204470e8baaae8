-- Grain: one row per training sequence and pair of the steps $steps of $run. Inputs: statistics.
SELECT * EXCLUDE (run, segment_id, row)
FROM statistics
WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
