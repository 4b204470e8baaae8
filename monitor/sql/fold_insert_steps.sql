-- Inputs: incoming (Arrow). Table: folded_steps.
INSERT INTO folded_steps BY NAME SELECT * FROM incoming
