-- The tokens of one step, masked ones included. Grain: token. Inputs: tokens. Parameters: $run, $step.
SELECT * EXCLUDE (segment_id, row) FROM tokens WHERE run = $run AND step = $step ORDER BY sample_id, segment_id, row, position
