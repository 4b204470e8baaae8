-- What the engines sampled. Grain: one row per rollout record. Input: rollout_sequences.
SELECT * FROM rollout_sequences
