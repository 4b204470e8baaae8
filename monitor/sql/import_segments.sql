-- Which segments of a writer the store has, and whether its import came to an end.
-- Grain: one row per segment. Inputs: segments, health_records. Parameters: $run, $writer.
SELECT sequence,
       EXISTS (SELECT 1 FROM health_records WHERE run = $run AND writer = $writer AND event = 'closed') AS closed
FROM segments WHERE run = $run AND writer = $writer
