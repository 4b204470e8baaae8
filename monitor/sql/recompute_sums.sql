-- What the trainer reported token by token, summed again. Grain: one row per training record. Inputs: incoming (Arrow).
UPDATE training_sequences AS s
SET advantage_abs_sum = i.advantage_abs_sum, entropy_sum = i.entropy_sum, entropy_n = i.entropy_n
FROM incoming AS i
WHERE s.run = i.run AND s.segment_id = i.segment_id AND s.row = i.row
