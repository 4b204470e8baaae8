-- Grain: one row per training sequence and pair of the steps of incoming (Arrow: run, step, place). `step`: the place of the step; see
-- step_tables. Inputs: incoming, statistics. Parameters: the range of what is chosen, for the zone maps.
SELECT i.place AS step, t.rowid AS sequence, t.* EXCLUDE (run, segment_id, row, step)
FROM statistics AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last
