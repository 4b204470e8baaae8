-- Keeps from where the judgement of runs goes on. Grain: run. Inputs: incoming.
INSERT OR REPLACE INTO growth_states BY NAME SELECT * FROM incoming
