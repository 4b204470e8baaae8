-- What was imported into a run, piece by piece. Grain: one row per piece. Inputs: health_records. Parameters: $run, $writer.
SELECT details FROM health_records
WHERE run = $run AND writer = $writer AND component = 'import' AND event = 'imported'
