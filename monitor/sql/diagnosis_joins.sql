-- Where r came from, and whether both sides have the same tokens: steps $first to $last of $run (both included; null: no bound).
-- Grain: rollout_source, token_match, length_match. `reduced`: sequences whose raw tokens were not kept. `received_differs`: those
-- whose r as received is not r as the engine's record has it (more than float32 rounding). Inputs: training_sequences.
SELECT
    rollout_source, token_match, length_match,
    count(*) AS sequences,
    sum(n_expected)::BIGINT AS tokens,
    count(*) FILTER (NOT raw_kept) AS reduced,
    count(weight_version) AS versioned,
    count(rollout_segment) AS seen_by_engine,
    count(*) FILTER (received_max_abs_diff > 1e-5) AS received_differs,
    min(step) AS first_step
FROM training_sequences
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
GROUP BY ALL
ORDER BY ALL
