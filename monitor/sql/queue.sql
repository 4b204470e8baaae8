-- queue_join: Tells the join job which samples have news, under the name of their trajectory too. Grain: one row per run and name of the batch.
-- Inputs: incoming (Arrow: run, sample_id).
INSERT INTO join_queue (run, sample_id) SELECT DISTINCT run, sample_id FROM incoming

-- queue_versions_of_marks: Marks that may come late for rollout records. Grain: one row per run and machine. Inputs: incoming (Arrow): weight records.
INSERT INTO version_queue (run, machine, moment, wall)
SELECT run, machine, min(moment), min(epoch_us(applied_at)) FROM incoming WHERE moment IS NOT NULL GROUP BY run, machine

-- queue_versions_of_rollouts: Rollout records that marks may have come late for. Grain: one row per segment. Inputs: incoming (Arrow): rollout records.
INSERT INTO version_queue (run, segment_id) SELECT DISTINCT run, segment_id FROM incoming WHERE decisions IS NOT NULL
