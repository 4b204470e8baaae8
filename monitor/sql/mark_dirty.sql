-- Tells the step job which steps have news. Grain: one row per run and step of the batch. Inputs: incoming (Arrow).
INSERT INTO dirty_steps (run, step) SELECT DISTINCT run, step FROM incoming
