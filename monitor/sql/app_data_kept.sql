-- Of which steps raw tokens, and of which all sequences are kept. Grain: run. Inputs: training_sequences, segments, raw_files, frozen_steps.
-- Parameters: none. Steps are the trainer's.
-- `with_raw`: sequences whose tokens can still be read one by one; `reduced`: that recorded as statistics only. `frozen`: steps of which only
-- metrics are kept, the last of them `last_frozen`; they had `summed` sequences.
WITH reduced AS (
    SELECT run, sum(rows)::BIGINT AS reduced FROM segments WHERE kind = 'statistics' GROUP BY run
), frozen AS (
    SELECT run, count(*) AS frozen, max(step) AS last_frozen, sum(sequences)::BIGINT AS summed FROM frozen_steps GROUP BY run
), seen AS (
    SELECT run, step, raw_kept, 1 AS sequences FROM training_sequences
    UNION ALL SELECT run, step, false, sequences FROM frozen_steps
), trained AS (
    SELECT run, sum(sequences)::BIGINT AS sequences, count(*) FILTER (raw_kept) AS with_raw, min(step) FILTER (raw_kept) AS first_step,
           max(step) FILTER (raw_kept) AS last_step, count(DISTINCT step) AS steps,
           count(DISTINCT step) FILTER (raw_kept) AS steps_with_raw
    FROM seen GROUP BY run
), files AS (
    SELECT run, count(*) AS files, sum(bytes)::BIGINT AS bytes, sum(bytes) FILTER (kind = 'training')::BIGINT AS training_bytes,
           sum(bytes) FILTER (kind = 'rollout')::BIGINT AS rollout_bytes, min(created_at) AS oldest_at, max(created_at) AS newest_at
    FROM raw_files WHERE kind IN ('training', 'rollout') GROUP BY run
)
SELECT run, trained.sequences, with_raw, coalesce(reduced, 0) AS reduced, steps, steps_with_raw,
       first_step, last_step, coalesce(files, 0) AS files, coalesce(bytes, 0) AS bytes, coalesce(training_bytes, 0) AS training_bytes,
       coalesce(rollout_bytes, 0) AS rollout_bytes, oldest_at, newest_at,
       coalesce(frozen, 0) AS frozen, last_frozen, coalesce(summed, 0) AS summed
FROM trained FULL JOIN files USING (run) LEFT JOIN reduced USING (run) LEFT JOIN frozen USING (run)
ORDER BY run
