-- Of which steps raw tokens, and of which all sequences are kept. Grain: run. Inputs: training_sequences, sampled_sequences, segments,
-- raw_files, folded_steps, folded_joins. Parameters: none. Steps are the trainer's.
-- `with_raw`: sequences whose tokens can still be read one by one; `reduced`: that recorded as statistics only. `folded`: steps of which sums
-- over all sequences are kept, the last of them `last_folded`; of these `sampled` sequences are kept one by one, from `sampled_from` on, and `summed` are not.
WITH reduced AS (
    SELECT run, sum(rows)::BIGINT AS reduced FROM segments WHERE kind = 'statistics' GROUP BY run
), gone AS (
    SELECT run, sum(sequences)::BIGINT AS sequences FROM folded_joins GROUP BY run
), folded AS (
    SELECT run, count(*) AS folded, max(step) AS last_folded FROM folded_steps GROUP BY run
), sample AS (
    SELECT run, count(*) AS sampled, min(step) AS sampled_from FROM sampled_sequences GROUP BY run
), seen AS (
    SELECT run, step, raw_kept, 1 AS sequences FROM training_sequences
    UNION ALL SELECT run, step, raw_kept, 0 FROM sampled_sequences
    UNION ALL SELECT run, step, false, 0 FROM folded_steps
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
SELECT run, trained.sequences + coalesce(gone.sequences, 0) AS sequences, with_raw, coalesce(reduced, 0) AS reduced, steps, steps_with_raw,
       first_step, last_step, coalesce(files, 0) AS files, coalesce(bytes, 0) AS bytes, coalesce(training_bytes, 0) AS training_bytes,
       coalesce(rollout_bytes, 0) AS rollout_bytes, oldest_at, newest_at,
       coalesce(folded, 0) AS folded, last_folded, coalesce(sampled, 0) AS sampled, sampled_from,
       greatest(coalesce(gone.sequences, 0) - coalesce(sampled, 0), 0) AS summed
FROM trained FULL JOIN files USING (run) LEFT JOIN reduced USING (run) LEFT JOIN gone USING (run) LEFT JOIN folded USING (run)
LEFT JOIN sample USING (run)
ORDER BY run
