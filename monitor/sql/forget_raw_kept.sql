-- Sequences whose raw tokens are about to go. Grain: one row per training record. Inputs: incoming (Arrow: path), segments.
UPDATE training_sequences SET raw_kept = false
WHERE segment_id IN (SELECT segment_id FROM segments WHERE raw_file IN (SELECT path FROM incoming))
