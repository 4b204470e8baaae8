-- The latest diagnosis of each of $runs (a list) that has one. Grain: run. Input: diagnoses.
SELECT run, step, document FROM diagnoses WHERE list_contains($runs::VARCHAR[], run)
