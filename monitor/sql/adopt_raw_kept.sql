-- Sequences whose raw tokens are there after all. {table}: training_sequences, or sampled_sequences of folded steps.
-- Grain: training record. Inputs: incoming (Arrow: segment_id).
UPDATE {table} SET raw_kept = true WHERE segment_id IN (SELECT segment_id FROM incoming) AND NOT raw_kept
