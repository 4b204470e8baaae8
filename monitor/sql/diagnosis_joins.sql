-- Where r came from, and whether both sides have the same tokens: steps $first to $last of $run (both included; null: no bound).
-- Grain: rollout_source, token_match, `pending`. `routed`: with routes of a mixture of experts.
-- `pending`: the engine's record may still be on its way. Inputs: training_sequences, steps_on_their_way. Nothing is known of frozen steps.
WITH counted AS (
    SELECT
        rollout_source, token_match,
        rollout_source = 'missing' AND rollout_segment IS NULL
            AND t.step IN (SELECT step FROM steps_on_their_way($run, now())) AS pending,
        count(*) AS sequences,
        sum(n_expected)::BIGINT AS tokens,
        count(rollout_segment) AS seen_by_engine,
        count(route_layers) AS routed
    FROM training_sequences AS t
    WHERE run = $run AND t.step >= coalesce($first::BIGINT, t.step) AND t.step <= coalesce($last::BIGINT, t.step)
    GROUP BY ALL
)
SELECT rollout_source, token_match, pending, sum(sequences)::BIGINT AS sequences, sum(tokens)::BIGINT AS tokens,
       sum(seen_by_engine)::BIGINT AS seen_by_engine, sum(routed)::BIGINT AS routed
FROM counted
GROUP BY ALL
ORDER BY ALL
