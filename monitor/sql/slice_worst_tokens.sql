-- The worst tokens of each step $first to $last of $run (both included; null: no bound), at most $count a step, as far as raw
-- tokens are kept: first broken ones, then by |log-ratio|. Grain: step and token. Inputs: tokens_in (the run's files).
SELECT step, row_number() OVER ranked AS place, sample_id, position, token_id, broken, rollout_logprob, trainer_logprob,
       log_ratio, weight_version, trainer_weight_version, segment_id, row
FROM tokens_in($training_files, $rollout_files)
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
    AND mask AND log_ratio IS NOT NULL AND NOT older
WINDOW ranked AS (PARTITION BY step ORDER BY broken IS NULL, abs(log_ratio) DESC, sample_id, position, segment_id, row)
QUALIFY place <= $count
ORDER BY step, place
