-- Sums of folded steps by pair. Grain: step of incoming (Arrow: run, step, place) and pair. `step`: the place of the step; see step_tables.
-- Inputs: incoming, folded_pairs.
SELECT i.place AS step, t.* EXCLUDE (run, step) FROM folded_pairs AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
