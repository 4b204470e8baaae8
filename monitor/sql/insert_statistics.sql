-- Grain: one row per training record and pair that could be computed. Inputs: incoming (Arrow), see statistics_rows.
INSERT INTO statistics BY NAME SELECT * FROM incoming
