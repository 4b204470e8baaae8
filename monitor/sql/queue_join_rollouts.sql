-- Tells the join job which samples have news, under the name of the trajectory too. Grain: one row per run and name of the batch.
-- Inputs: incoming (Arrow): rollout records.
INSERT INTO join_queue (run, sample_id)
SELECT run, sample_id FROM incoming
UNION
SELECT run, trajectory FROM incoming WHERE trajectory IS NOT NULL
