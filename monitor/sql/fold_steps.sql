-- Sums of folded steps. Grain: step of incoming (Arrow: run, step, place). `step`: the place of the step; see step_tables. Inputs: incoming, folded_steps.
SELECT i.place AS step, time, sums FROM folded_steps AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
