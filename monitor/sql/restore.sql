-- restore_made: Rollout records that were made of several requests. Grain: one row per training record that has one. Inputs: incoming (Arrow), as of
-- archive_trained.
INSERT INTO rollout_sequences BY NAME SELECT unnest(made) FROM incoming WHERE made.segment_id IS NOT NULL

-- restore_older: Training records of older attempts. Grain: one row per training record. Inputs: incoming (Arrow), as of archive_trained.
INSERT INTO older_sequences BY NAME
SELECT * EXCLUDE (statistics, made) REPLACE (false AS raw_kept) FROM incoming WHERE repeated_by IS NOT NULL

-- restore_older_statistics: Their statistics. Grain: one row per training record and pair. Inputs: incoming (Arrow), as of archive_trained.
INSERT INTO older_statistics BY NAME
SELECT unnest(s) FROM (SELECT unnest(statistics) AS s FROM incoming WHERE repeated_by IS NOT NULL)

-- restore_rollouts: Grain: one row per rollout record. Inputs: incoming (Arrow), as of archive_sampled.
INSERT INTO rollout_sequences BY NAME SELECT * FROM incoming

-- restore_statistics: Statistics of training records. Grain: one row per training record and pair. Inputs: incoming (Arrow), as of archive_trained.
INSERT INTO statistics BY NAME
SELECT unnest(s) FROM (SELECT unnest(statistics) AS s FROM incoming WHERE repeated_by IS NULL)

-- restore_training: Grain: one row per training record. Inputs: incoming (Arrow), as of archive_trained.
INSERT INTO training_sequences BY NAME
SELECT * EXCLUDE (statistics, made, writer, repeated_by, began) REPLACE (false AS raw_kept) FROM incoming WHERE repeated_by IS NULL
