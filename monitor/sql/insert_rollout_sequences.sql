-- Grain: one row per rollout record. Inputs: incoming (Arrow): reduced rollout records.
INSERT INTO rollout_sequences BY NAME SELECT * EXCLUDE (writer) FROM incoming
