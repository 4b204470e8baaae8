-- Between which times the rollout records were sampled that sequences of the steps $first to $last of $run were joined with; null where the
-- time of one is not known (microseconds since 1970). Grain: one row. Inputs: training_sequences, sampled_sequences, rollout_sequences.
WITH joined AS (
    SELECT rollout_segment, rollout_row FROM training_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
    UNION
    SELECT rollout_segment, rollout_row FROM sampled_sequences WHERE run = $run AND step BETWEEN $first::BIGINT AND $last::BIGINT
)
SELECT
    CASE WHEN count(*) = count(r.time) THEN epoch_us(min(r.time)) END AS sampled_from,
    CASE WHEN count(*) = count(r.time) THEN epoch_us(max(r.time)) END AS sampled_to
FROM joined AS j LEFT JOIN rollout_sequences AS r
    ON r.run = $run AND r.segment_id = j.rollout_segment AND r.row = j.rollout_row
WHERE j.rollout_segment IS NOT NULL
