-- The latest diagnosis of each run, or of $run alone (null: of all). Grain: run. Input: diagnoses.
SELECT run, step, verdict, layer, since_step, causes, document, diagnosed_at
FROM diagnoses
WHERE run = coalesce($run, run)
ORDER BY run
