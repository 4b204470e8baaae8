-- Inputs: incoming (Arrow). Table: folded_pairs.
INSERT INTO folded_pairs BY NAME SELECT * FROM incoming
