-- Inputs: incoming (Arrow). Table: folded_profiles.
INSERT INTO folded_profiles BY NAME SELECT * FROM incoming
