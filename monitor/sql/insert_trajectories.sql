-- Grain: one row per trained sequence that was sampled in several engine requests. Inputs: incoming (Arrow): its parts as one record.
INSERT INTO rollout_sequences BY NAME SELECT * FROM incoming
