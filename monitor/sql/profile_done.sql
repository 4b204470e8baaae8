-- Grain: one row per profiled step. Inputs: incoming (Arrow).
INSERT OR REPLACE INTO profiled_steps BY NAME SELECT run, step, revision, tokens FROM incoming
