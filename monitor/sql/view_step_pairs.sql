-- Statistics of each step and pair, of all sequences together. Grain: run, step and pair. Inputs: statistics; of frozen steps frozen_pairs.
FROM pair_sums UNION ALL BY NAME FROM frozen_pairs
