-- Tells the join job which samples have news. Grain: one row per run and sample of the batch. Inputs: incoming (Arrow).
INSERT INTO join_queue (run, sample_id) SELECT DISTINCT run, sample_id FROM incoming
