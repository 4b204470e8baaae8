-- Grain: one row per step record. Inputs: incoming (Arrow).
INSERT INTO step_records BY NAME SELECT run, step, rank, time, scalars, correction FROM incoming
