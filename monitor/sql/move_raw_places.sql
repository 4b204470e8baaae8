-- Segments whose raw tokens have been merged into another file. Grain: one row per segment. Inputs: incoming (Arrow: path, target).
UPDATE segments SET raw_file = i.target FROM incoming AS i WHERE segments.raw_file = i.path
