-- The steps of a run with all metrics and scalars. Grain: step. Inputs: steps. Parameters: $run.
SELECT * FROM steps WHERE run = $run ORDER BY step
