-- Tells the join job which samples have news, under the name of their trajectory too. Grain: one row per run and name of the batch.
-- Inputs: incoming (Arrow: run, sample_id).
INSERT INTO join_queue (run, sample_id) SELECT DISTINCT run, sample_id FROM incoming
