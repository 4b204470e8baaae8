-- Segments whose raw tokens have been merged into the file $target. Grain: one row per segment. Inputs: incoming (Arrow: path).
UPDATE segments SET raw_file = $target WHERE raw_file IN (SELECT path FROM incoming)
