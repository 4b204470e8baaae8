-- Counts how the sequences that are about to go were joined. Grain: see folded_joins. Inputs: incoming (Arrow: run, step),
-- training_sequences, the rollout record each was joined with (rollout_sequences).
INSERT INTO folded_joins BY NAME
SELECT
    t.run, t.step, t.rollout_source, t.token_match, t.length_match, r.engine_config_id,
    count(*) AS sequences,
    sum(t.n_expected)::BIGINT AS tokens,
    count(*) FILTER (t.n_expected > 0) AS with_tokens,
    count(*) FILTER (t.n_expected > 0 AND (t.rollout_source = 'joined' OR t.received_max_abs_diff IS NOT NULL)) AS independent,
    count(*) FILTER (NOT t.raw_kept) AS reduced,
    count(t.weight_version) AS versioned,
    count(t.rollout_segment) AS seen_by_engine,
    count(*) FILTER (t.received_max_abs_diff > 1e-5) AS received_differs,
    count(*) FILTER (t.entropy_n > 0) AS with_entropy,
    count(t.reward) AS rewarded,
    count(*) FILTER (t.again) AS repeated
FROM (
    SELECT *, row_number() OVER (PARTITION BY run, step, sample_id ORDER BY segment_id, row) > 1 AS again
    FROM training_sequences
    WHERE (run, step) IN (SELECT (run, step) FROM incoming)
) AS t
LEFT JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
GROUP BY ALL
