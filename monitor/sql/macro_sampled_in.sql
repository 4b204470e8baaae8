-- Rollout records in given files that were sampled between two times (microseconds since 1970; null: any), by which the rows of a merged file are sorted.
-- Grain: one row per sequence. Inputs: raw_rollout_in.
SELECT * FROM raw_rollout_in(rollout_files)
WHERE (sampled_from::BIGINT IS NULL OR time >= make_timestamptz(sampled_from::BIGINT))
    AND (sampled_to::BIGINT IS NULL OR time <= make_timestamptz(sampled_to::BIGINT))
