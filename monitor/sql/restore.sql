-- restore_made: Rollout records that were made of several requests. Grain: one row per training record that has one. Inputs: incoming (Arrow), as of
-- archive_trained.
INSERT INTO rollout_sequences BY NAME SELECT unnest(made) FROM incoming WHERE made.segment_id IS NOT NULL

-- restore_rollouts: Grain: one row per rollout record. Inputs: incoming (Arrow), as of archive_sampled.
INSERT INTO rollout_sequences BY NAME SELECT * FROM incoming

-- restore_statistics: Statistics of training records. Grain: one row per training record and pair. Inputs: incoming (Arrow), as of archive_trained.
INSERT INTO all_statistics BY NAME
SELECT unnest(s), repeated_by FROM (SELECT unnest(statistics) AS s, repeated_by FROM incoming)

-- restore_training: Grain: one row per training record. Inputs: incoming (Arrow), as of archive_trained.
INSERT INTO all_sequences BY NAME SELECT * EXCLUDE (statistics, made) REPLACE (false AS raw_kept) FROM incoming
