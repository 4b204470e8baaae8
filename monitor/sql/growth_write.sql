-- Keeps judgements of steps. Grain: run and step. Inputs: incoming.
INSERT OR REPLACE INTO step_growth BY NAME SELECT * FROM incoming
