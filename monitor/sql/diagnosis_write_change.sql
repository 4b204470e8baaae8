-- Notes that the diagnosis of $run has become another: a copy of diagnoses. Grain: run and change.
INSERT INTO diagnosis_changes (run, step, verdict, layer, since_step, causes, document, diagnosed_at)
SELECT run, step, verdict, layer, since_step, causes, document, diagnosed_at FROM diagnoses WHERE run = $run
