-- The runs of this home: how much of each is stored, with raw tokens, and lost. Grain: run, newest first.
-- Inputs: runs, training_sequences, health_records, quarantine. Parameters: none.
-- `lost_tokens`: what collectors say they dropped, or kept as statistics only. `with_raw`: sequences whose tokens can still be read.
WITH told AS (
    SELECT run, coalesce(sum(sequences) FILTER (severity <> 'info'), 0)::BIGINT AS lost_sequences,
           coalesce(sum(tokens) FILTER (severity <> 'info'), 0)::BIGINT AS lost_tokens
    FROM health_records GROUP BY run
), aside AS (
    SELECT run, count(*) AS quarantined FROM quarantine GROUP BY run
), trained AS (
    SELECT run, count(*) FILTER (raw_kept) AS with_raw FROM training_sequences GROUP BY run
)
SELECT run, sequences, coalesce(with_raw, 0) AS with_raw, raw_bytes, last_time, coalesce(lost_sequences, 0) AS lost_sequences,
       coalesce(lost_tokens, 0) AS lost_tokens, coalesce(quarantined, 0) AS quarantined
FROM runs LEFT JOIN told USING (run) LEFT JOIN aside USING (run) LEFT JOIN trained USING (run)
ORDER BY last_time DESC, run
