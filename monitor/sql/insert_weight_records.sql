-- Grain: one row per observed weight update. Inputs: incoming (Arrow).
INSERT INTO weight_records BY NAME SELECT * EXCLUDE (segment_id, row, writer) FROM incoming
