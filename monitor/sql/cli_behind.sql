-- What of a run is not yet, or never will be, part of its numbers.
-- Grain: one row. Inputs: dirty_steps, quarantine. Parameters: $run.
SELECT (SELECT count(DISTINCT step) FROM dirty_steps WHERE run = $run) AS dirty_steps,
       (SELECT count(*) FROM quarantine WHERE run = $run) AS quarantined,
       (SELECT coalesce(list(DISTINCT reason ORDER BY reason), []) FROM quarantine WHERE run = $run) AS quarantine_reasons
