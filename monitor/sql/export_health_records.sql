-- The health records of a run, without the markers of an import, which mean nothing in another home.
-- Grain: record. Inputs: health_records. Parameters: $run.
SELECT * EXCLUDE (run, writer) FROM health_records WHERE run = $run AND component IS DISTINCT FROM 'import' ORDER BY time
