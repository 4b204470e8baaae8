-- Of which steps raw tokens are kept. Grain: run. Inputs: training_sequences, segments, raw_files. Parameters: none.
-- `with_raw`: sequences whose tokens can still be read one by one; `reduced`: that came as statistics only. Steps are the trainer's.
WITH reduced AS (
    SELECT run, sum(rows)::BIGINT AS reduced FROM segments WHERE kind = 'statistics' GROUP BY run
), trained AS (
    SELECT run, count(*) AS sequences, count(*) FILTER (raw_kept) AS with_raw, min(step) FILTER (raw_kept) AS first_step,
           max(step) FILTER (raw_kept) AS last_step, count(DISTINCT step) AS steps,
           count(DISTINCT step) FILTER (raw_kept) AS steps_with_raw
    FROM training_sequences GROUP BY run
), files AS (
    SELECT run, count(*) AS files, sum(bytes)::BIGINT AS bytes, sum(bytes) FILTER (kind = 'training')::BIGINT AS training_bytes,
           sum(bytes) FILTER (kind = 'rollout')::BIGINT AS rollout_bytes, min(created_at) AS oldest_at, max(created_at) AS newest_at,
           count(*) FILTER (compacted) AS merged
    FROM raw_files GROUP BY run
)
SELECT run, sequences, with_raw, coalesce(reduced, 0) AS reduced, steps, steps_with_raw, first_step, last_step, coalesce(files, 0) AS files,
       coalesce(bytes, 0) AS bytes, coalesce(training_bytes, 0) AS training_bytes, coalesce(rollout_bytes, 0) AS rollout_bytes,
       oldest_at, newest_at, coalesce(merged, 0) AS merged
FROM trained FULL JOIN files USING (run) LEFT JOIN reduced USING (run)
ORDER BY run
