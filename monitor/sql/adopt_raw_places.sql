-- Segments whose raw tokens are, after all, in the file $target. Grain: one row per segment. Inputs: incoming (Arrow: segment_id).
UPDATE segments SET raw_file = $target WHERE segment_id IN (SELECT segment_id FROM incoming)
