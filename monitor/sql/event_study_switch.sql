-- The gap around weight updates inside sequences: steps $first to $last of $run (both included; null: no bound), as far as raw
-- tokens are kept. Grain: distance of a sampled token to a switch of the weight version within its sequence: 0 is the first
-- token of the new weights, -1 the last of the old, at most $reach away; tokens between two switches are in both counts. Distance
-- null: tokens of sequences without a switch, whose weights are all known. Inputs: tokens_in (the run's files).
WITH sampled AS (
    SELECT segment_id, row, weight_version, log_ratio AS d, broken,
           row_number() OVER sequence AS place,
           weight_version <> lag(weight_version) OVER sequence AS switched,
           bool_and(weight_version IS NOT NULL) OVER (PARTITION BY segment_id, row) AS known
    FROM tokens_in($training_files, $rollout_files)
    WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
        AND mask AND log_ratio IS NOT NULL AND NOT older
    WINDOW sequence AS (PARTITION BY segment_id, row ORDER BY position)
),
placed AS (
    SELECT segment_id, row, place, d, broken, known,
           max(CASE WHEN switched THEN place END) OVER (sequence ROWS UNBOUNDED PRECEDING) AS last_switch,
           min(CASE WHEN switched THEN place END) OVER (sequence ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS next_switch
    FROM sampled
    WINDOW sequence AS (PARTITION BY segment_id, row ORDER BY place)
),
distances AS (
    SELECT segment_id, row, d, broken, place - last_switch AS distance FROM placed WHERE place - last_switch <= $reach
    UNION ALL
    SELECT segment_id, row, d, broken, place - next_switch FROM placed WHERE next_switch - place <= $reach
    UNION ALL
    SELECT segment_id, row, d, broken, NULL FROM placed WHERE last_switch IS NULL AND next_switch IS NULL AND known
)
SELECT
    distance,
    count(broken) AS broken,
    avg(abs(d)) FILTER (broken IS NULL) AS logprob_abs_diff_mean,
    stddev_samp(abs(d)) FILTER (broken IS NULL) / sqrt(nullif(count(*) FILTER (broken IS NULL), 0)) AS logprob_abs_diff_error
FROM distances
GROUP BY distance
ORDER BY distance NULLS LAST
