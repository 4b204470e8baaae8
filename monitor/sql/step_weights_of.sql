-- Grain: one row per weight record of the runs of incoming (Arrow: run, step, place) that names one of $versions, or any version of $whole
-- (runs whose versions count by their order). Inputs: incoming, weight_records.
SELECT run, version, step, coalesce(applied_at, time) AS time, source
FROM weight_records
WHERE run IN (SELECT run FROM incoming)
    AND (list_contains($versions::VARCHAR[], version) OR (version IS NOT NULL AND list_contains($whole::VARCHAR[], run)))
