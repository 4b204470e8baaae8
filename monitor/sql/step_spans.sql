-- Grain: one row per training sequence of the steps $steps of $run and weight version that sampled a part of it; version null for
-- sampled tokens without one, and for all tokens of a sequence without a rollout record. Inputs: training_sequences,
-- rollout_sequences (the newest record of a sample).
WITH trained AS (
    SELECT row_number() OVER () AS sequence, step, sample_id, n_expected, weight_version
    FROM training_sequences
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
),
rollout AS (
    SELECT sample_id, n_tokens, spans
    FROM rollout_sequences
    WHERE run = $run AND sample_id IN (SELECT sample_id FROM trained)
    QUALIFY row_number() OVER (PARTITION BY sample_id ORDER BY time DESC NULLS LAST) = 1
),
joined AS (
    SELECT sequence, step, weight_version AS trainer_version, coalesce(n_tokens, n_expected) AS n, spans
    FROM trained LEFT JOIN rollout USING (sample_id)
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
ORDER BY step, sequence
