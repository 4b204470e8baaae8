-- Grain: one row per training sequence of the steps $steps (ascending) of $run. Inputs: training_sequences.
SELECT step, time, n_expected, reward, advantage_abs_sum, entropy_sum, entropy_n, token_match, length_match,
       routes_match, routes_expected, routes_compared, routes_equal
FROM training_sequences
WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
