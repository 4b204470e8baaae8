-- The gap by whether the engine took a request's first prompt tokens from its prefix cache, and by whether weights changed while it
-- ran: steps $first to $last of $run (both included; null: no bound). Needs no raw tokens. Grain: `cached` and `in_flight`, null
-- where the engine did not say. The standard error is clustered by sequence. Inputs: statistics of the pair "backend",
-- training_sequences, the rollout record each was joined with (rollout_sequences).
WITH joined AS (
    SELECT r.cached_prefix_tokens > 0 AS cached, known_versions(engine_spans(r.spans, r.decisions, r.clock_offset, t.time), t.pieces) AS spans,
           s.n, s.n_expected - s.n AS broken, s.sum_abs_d, s.sum_d, s.sum_k3
    FROM statistics AS s
    JOIN training_sequences AS t ON t.run = $run AND t.step = s.step AND t.segment_id = s.segment_id AND t.row = s.row
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE s.run = $run AND s.pair = 'backend'
        AND s.step >= coalesce($first::BIGINT, s.step) AND s.step <= coalesce($last::BIGINT, s.step)
),
measured AS (
    SELECT * EXCLUDE (spans),
           CASE WHEN len(spans) > 0 AND len(list_filter(spans, lambda s: s."version" IS NULL)) = 0
                THEN len(list_distinct(list_transform(spans, lambda s: s."version"))) > 1 END AS in_flight
    FROM joined
),
means AS (
    SELECT *, sum(sum_abs_d) OVER groups / nullif(sum(n) OVER groups, 0) AS mean
    FROM measured
    WINDOW groups AS (PARTITION BY cached, in_flight)
)
SELECT
    cached, in_flight,
    count(*) AS sequences,
    sum(n)::BIGINT AS tokens,
    sum(broken)::BIGINT AS broken,
    any_value(mean) AS logprob_abs_diff_mean,
    sqrt(sum((sum_abs_d - mean * n) ** 2) * count(*) / nullif(count(*) - 1, 0)) / nullif(sum(n), 0) AS logprob_abs_diff_error,
    sum(sum_d) / nullif(sum(n), 0) AS log_ratio_mean,
    sum(sum_k3) / nullif(sum(n), 0) AS k3_kl
FROM means
GROUP BY cached, in_flight
ORDER BY cached NULLS LAST, in_flight NULLS LAST
