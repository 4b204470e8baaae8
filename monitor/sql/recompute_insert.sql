-- Grain: one row per training record and pair, in the order in which they were stored: it decides about the last digits of their sums.
-- Inputs: incoming (Arrow).
INSERT INTO statistics BY NAME SELECT * FROM incoming
