-- How the diagnosis of $run has changed, oldest first. Grain: change. Input: diagnosis_changes.
SELECT step, verdict, layer, since_step, causes, document, diagnosed_at
FROM diagnosis_changes
WHERE run = $run
ORDER BY diagnosed_at, step
