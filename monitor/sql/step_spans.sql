-- Grain: one row per training sequence of the steps $steps of $run and weight version that sampled a part of it; version null for
-- sampled tokens without one, and for all tokens of a sequence without a rollout record. Inputs: training_sequences,
-- rollout_sequences (the record a sequence was joined with).
WITH trained AS (
    SELECT rowid AS sequence, step, n_expected, weight_version AS trainer_version, rollout_segment, rollout_row,
           alignment
    FROM training_sequences
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
),
joined AS (
    SELECT t.sequence, t.step, t.trainer_version, r.spans,
           -- What the engine sampled beyond the trained tokens, or the trainer appended, must not shift the lag.
           CASE WHEN t.alignment = 'prefix' THEN t.n_expected ELSE coalesce(r.n_tokens, t.n_expected) END AS n
    FROM trained AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
),
spanned AS (
    SELECT sequence, step, trainer_version, span.version AS version,
           sum(greatest(least(span."end", n) - greatest(span."start", 0), 0)) AS tokens
    FROM (SELECT sequence, step, trainer_version, n, unnest(spans) AS span FROM joined)
    GROUP BY ALL
),
uncovered AS (
    SELECT sequence, step, trainer_version, NULL AS version, n - coalesce(covered, 0) AS tokens
    FROM joined LEFT JOIN (SELECT sequence, sum(tokens) AS covered FROM spanned GROUP BY sequence) USING (sequence)
    WHERE n > coalesce(covered, 0)
)
SELECT sequence, step, trainer_version, version, tokens FROM spanned
UNION ALL
SELECT sequence, step, trainer_version, version, tokens FROM uncovered
