-- Inputs: incoming (Arrow). Table: folded_spans.
INSERT INTO folded_spans BY NAME SELECT * FROM incoming
