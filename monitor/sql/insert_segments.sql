-- The ledger rows of a batch. Grain: one row per segment. Inputs: incoming (Arrow).
INSERT INTO segments BY NAME SELECT * FROM incoming
