-- insert_bad_rows: Rows of segments that no reader is to see. Grain: one row per row. Inputs: incoming (Arrow).
INSERT INTO bad_rows BY NAME SELECT * FROM incoming

-- insert_config_records: Grain: one row per configuration document, writer and start. Inputs: incoming (Arrow).
INSERT INTO config_records BY NAME SELECT * EXCLUDE (segment_id, row, writer) FROM incoming

-- insert_health_records: Grain: one row per health record. Inputs: incoming (Arrow).
INSERT INTO health_records BY NAME SELECT * EXCLUDE (segment_id, row) FROM incoming

-- insert_rollout_sequences: Grain: one row per rollout record. Inputs: incoming (Arrow): reduced rollout records.
INSERT INTO rollout_sequences BY NAME SELECT * EXCLUDE (writer) FROM incoming

-- insert_segments: The ledger rows of a batch. Grain: one row per segment. Inputs: incoming (Arrow).
INSERT INTO segments BY NAME SELECT * FROM incoming

-- insert_step_records: Grain: one row per step record. Inputs: incoming (Arrow).
INSERT INTO all_step_records BY NAME SELECT run, step, rank, time, scalars, correction FROM incoming

-- insert_trajectories: Grain: one row per trained sequence that was sampled in several engine requests. Inputs: incoming (Arrow): its parts as one record.
INSERT INTO rollout_sequences BY NAME SELECT * FROM incoming

-- insert_weight_readings: Grain: one row per fingerprint of weights. Inputs: incoming (Arrow): weight records.
INSERT INTO weight_readings BY NAME
SELECT run, time, source, replica, worker, version, step, reason, applied_at, fingerprint, layout, tensor_hashes, adapter
FROM incoming
WHERE fingerprint IS NOT NULL

-- insert_weight_records: Grain: one row per observed weight update; what workers read of the weights goes to weight_readings. Inputs: incoming (Arrow).
INSERT INTO weight_records BY NAME
SELECT * EXCLUDE (segment_id, row, writer, fingerprint, layout, tensor_hashes, worker, reason) FROM incoming
WHERE source IS DISTINCT FROM 'worker'
