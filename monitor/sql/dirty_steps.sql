-- Grain: one row per mark of a dirty step. Inputs: dirty_steps.
SELECT run, step, mark FROM dirty_steps ORDER BY run, step, mark
