-- Which runs have rollout records in the object store, and the steps whose training sequences may be joined with them. Grain: run.
-- Inputs: raw_files, training_sequences, sampled_sequences.
SELECT run, min(step) AS first, max(step) AS last
FROM (
    SELECT run, step FROM training_sequences WHERE rollout_segment IS NOT NULL
    UNION ALL
    SELECT run, step FROM sampled_sequences WHERE rollout_segment IS NOT NULL
)
WHERE run IN (SELECT run FROM raw_files WHERE location IS NOT NULL AND kind = 'rollout')
GROUP BY run
