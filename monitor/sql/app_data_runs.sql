-- The runs of this home: how much of each is stored, since what time, where it came from, and what of it is lost.
-- Grain: run, newest first. Inputs: runs, health_records, quarantine. Parameters: none.
-- `lost_tokens`: what collectors say they dropped, or kept as statistics only.
WITH told AS (
    SELECT run, bool_or(component = 'import') AS imported,
           coalesce(sum(sequences) FILTER (severity <> 'info'), 0)::BIGINT AS lost_sequences,
           coalesce(sum(tokens) FILTER (severity <> 'info'), 0)::BIGINT AS lost_tokens
    FROM health_records GROUP BY run
), aside AS (
    SELECT run, count(*) AS quarantined FROM quarantine GROUP BY run
)
SELECT run, first_step, last_step, steps, sequences, tokens, rollouts, segments, first_time, last_time, last_ingested_at, raw_files,
       raw_bytes, coalesce(imported, false) AS imported, coalesce(lost_sequences, 0) AS lost_sequences,
       coalesce(lost_tokens, 0) AS lost_tokens, coalesce(quarantined, 0) AS quarantined
FROM runs LEFT JOIN told USING (run) LEFT JOIN aside USING (run)
ORDER BY last_time DESC, run
