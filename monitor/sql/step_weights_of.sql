-- Grain: one row per weight record of the runs of incoming (Arrow: run, step, place) that names one of $versions, or any version of $whole
-- (runs whose versions count by their order), or one that is the result of a step of incoming (`news`). Inputs: incoming, weight_records.
WITH results AS (
    SELECT DISTINCT t.run, t.version FROM weight_records AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
)
SELECT t.rowid AS sequence, t.run, t.version, t.step, coalesce(t.applied_at, t.time) AS time, t.source, t.replica,
       t.requested_at, t.started_at, t.applied_at, t.resumed_at, r.run IS NOT NULL AS news
FROM weight_records AS t LEFT JOIN results AS r ON r.run = t.run AND r.version = t.version
WHERE t.run IN (SELECT run FROM incoming) AND t.version IS NOT NULL
    AND (r.run IS NOT NULL OR list_contains($versions::VARCHAR[], t.version) OR list_contains($whole::VARCHAR[], t.run))
