-- Grain: one row per step, pair, dimension and bucket. Inputs: incoming (Arrow).
INSERT INTO profiles BY NAME SELECT run, step, pair, dimension, bucket, n, sum_d, sum_abs_d, sum_k3 FROM incoming
