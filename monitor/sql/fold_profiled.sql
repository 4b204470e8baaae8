-- Folded steps are not profiled again: what they had is part of a window. Inputs: incoming (Arrow: run, step). Table: profiled_steps.
UPDATE profiled_steps SET revision = 9223372036854775807 WHERE (run, step) IN (SELECT (run, step) FROM incoming)
