-- What the engines sampled. Grain: one row per rollout record; what the join made of several is left out. Input: rollout_sequences.
SELECT * EXCLUDE (logprobs, parts, decisions, clock_offset, engine_started) FROM rollout_sequences WHERE parts IS NULL
