-- Grain: one row per configuration document, writer and start. Inputs: incoming (Arrow).
INSERT INTO config_records BY NAME SELECT * EXCLUDE (segment_id, row, writer) FROM incoming
