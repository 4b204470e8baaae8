-- Tokens of the steps of incoming (Arrow: run, step, place) by the weight version that sampled them; `step`: the place of the step, see
-- step_tables; version null for sampled tokens without one, and for all
-- tokens of a sequence without a rollout record. Grain: one row per step, kind of sequence and version; sequences are of one kind
-- when the trainer's version and all versions of their tokens (`versions`) are the same, and `alike` is how many there are. So
-- sequences that were folded and those that are kept merge exactly. Inputs: incoming, training_sequences, rollout_sequences (the record a
-- sequence was joined with), folded_spans. A version is the engine's or the trainer's, see known_versions.
WITH trained AS (
    SELECT t.rowid AS sequence, t.run, i.place AS step, n_expected, weight_version AS trainer_version, rollout_segment, rollout_row,
           alignment, rollout_versions
    FROM training_sequences AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
    WHERE t.run BETWEEN $first_run AND $last_run AND t.step BETWEEN $first AND $last
),
joined AS (
    SELECT t.sequence, t.run, t.step, t.trainer_version, known_versions(r.spans, t.rollout_versions, t.alignment) AS spans,
           -- What the engine sampled beyond the trained tokens, or the trainer appended, must not shift the lag.
           CASE WHEN t.alignment = 'prefix' OR (t.alignment IS NULL AND t.rollout_versions IS NOT NULL) THEN t.n_expected ELSE coalesce(r.n_tokens, t.n_expected) END AS n
    FROM trained AS t
    LEFT JOIN rollout_sequences AS r
        ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row AND r.run BETWEEN $first_run AND $last_run
),
spanned AS (
    SELECT sequence, run, step, trainer_version, span.version AS version,
           sum(greatest(least(span."end", n) - greatest(span."start", 0), 0)) AS tokens
    FROM (SELECT sequence, run, step, trainer_version, n, unnest(spans) AS span FROM joined)
    GROUP BY ALL
),
uncovered AS (
    SELECT sequence, run, step, trainer_version, NULL::VARCHAR AS version, n - coalesce(covered, 0) AS tokens
    FROM joined LEFT JOIN (SELECT sequence, sum(tokens) AS covered FROM spanned GROUP BY sequence) USING (sequence)
    WHERE n > coalesce(covered, 0)
),
-- A span without a version and tokens without a span are the same thing.
parts AS (
    SELECT sequence, run, step, trainer_version, version, sum(tokens) AS tokens
    FROM (FROM spanned UNION ALL FROM uncovered)
    GROUP BY ALL
    HAVING sum(tokens) > 0
),
kinds AS (
    SELECT sequence, list(version ORDER BY version NULLS LAST) AS versions FROM parts GROUP BY sequence
),
everything AS (
    SELECT run, step, trainer_version, versions, version, tokens, 1 AS alike FROM parts JOIN kinds USING (sequence)
    UNION ALL
    SELECT t.run, i.place, trainer_version, versions, version, tokens, alike
    FROM folded_spans AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step
)
SELECT dense_rank() OVER (ORDER BY step, trainer_version, versions) AS sequence, run, step, trainer_version, versions, version,
       sum(tokens)::BIGINT AS tokens, sum(alike)::BIGINT AS alike
FROM everything
GROUP BY run, step, trainer_version, versions, version
ORDER BY step, trainer_version, versions, version
