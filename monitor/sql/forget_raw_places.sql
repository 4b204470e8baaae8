-- Segments whose raw tokens are about to go. Grain: one row per segment. Inputs: incoming (Arrow: path).
UPDATE segments SET raw_file = NULL WHERE raw_file IN (SELECT path FROM incoming)
