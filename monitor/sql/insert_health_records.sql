-- Grain: one row per health record. Inputs: incoming (Arrow).
INSERT INTO health_records BY NAME SELECT * EXCLUDE (segment_id, row) FROM incoming
