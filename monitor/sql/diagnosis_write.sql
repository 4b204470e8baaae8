-- Replaces the diagnosis of a run. Grain: run. Parameters: the columns of diagnoses.
INSERT OR REPLACE INTO diagnoses (run, step, revision, verdict, layer, since_step, causes, document, diagnosed_at, cause, share, urgency, advice)
VALUES ($run, $step, $revision, $verdict, $layer, $since_step, $causes, $document, $diagnosed_at, $cause, $share, $urgency, $advice)
