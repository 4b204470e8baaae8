-- The backend gap of some steps, each of $steps one of the run at its place in $runs, by what may tell causes apart. Grain: run, step,
-- `version` (number of the version that sampled, of a label that is none its place; token mean, rounded half up), replica,
-- `cached` (prompt tokens came from the prefix cache), `in_flight` (sampled by more than one weight version), `lag` (trainer's
-- version − that of the sequence's tokens, token mean, rounded half up, in versions); each null where unknown. $lowest and $highest: of $steps.
-- Columns `c_*`: see diagnosis_steps. Inputs: training_sequences, the rollout record each was joined with (rollout_sequences),
-- statistics of the pair "backend", weight_records (order of versions whose labels are no numbers).
WITH wanted AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($steps::BIGINT[]) AS step
),
chosen AS (SELECT DISTINCT run FROM wanted),
known AS (
    SELECT run, version, row_number() OVER (PARTITION BY run ORDER BY min(coalesce(applied_at, time)), version) AS place
    FROM weight_records WHERE run IN (FROM chosen) AND version IS NOT NULL GROUP BY run, version
),
trained AS (
    SELECT t.* FROM training_sequences AS t SEMI JOIN wanted AS w ON w.run = t.run AND w.step = t.step
    WHERE t.step BETWEEN $lowest::BIGINT AND $highest::BIGINT
),
labels AS (
    SELECT run, version, coalesce(try_cast(version AS BIGINT), place) AS number
    FROM (SELECT DISTINCT run, weight_version AS version FROM trained UNION SELECT run, version FROM known)
    LEFT JOIN known USING (run, version)
    WHERE version IS NOT NULL
),
rollouts AS (
    SELECT t.run, t.segment_id, t.row, r.replica, r.cached_prefix_tokens > 0 AS cached, known_versions(r.spans, t.pieces) AS spans
    FROM trained AS t
    LEFT JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE r.run IS NOT NULL OR t.rollout_versions IS NOT NULL
),
spans AS (
    SELECT run, segment_id, row, replica, cached, span."version" AS version, span."end" - span."start" AS length
    FROM (SELECT * EXCLUDE spans, unnest(spans) AS span FROM rollouts WHERE len(spans) > 1)
),
-- Most sequences have one span, and need no grouping.
sampled AS (
    SELECT r.run, r.segment_id, r.row, r.replica, r.cached, r.spans[1]."version" IS NULL AS unlabelled, false AS in_flight,
           coalesce(v.number, try_cast(r.spans[1]."version" AS BIGINT)) AS number
    FROM rollouts AS r LEFT JOIN labels AS v ON v.run = r.run AND v.version = r.spans[1]."version"
    WHERE coalesce(len(r.spans), 0) <= 1
    UNION ALL
    SELECT p.run, p.segment_id, p.row, any_value(p.replica), any_value(p.cached), count(*) > count(p.version),
           min(p.version) <> max(p.version),
           sum(coalesce(v.number, try_cast(p.version AS BIGINT)) * p.length) / nullif(sum(p.length), 0)
    FROM spans AS p LEFT JOIN labels AS v ON v.run = p.run AND v.version = p.version
    GROUP BY p.run, p.segment_id, p.row
),
measured AS (
    SELECT t.run, t.step, CASE WHEN NOT r.unlabelled THEN floor(r.number + 0.5) END AS version, r.replica, r.cached, r.unlabelled, r.in_flight,
           v.number - r.number AS lag, s.n, s.sum_d, s.sum_abs_d, s.sum_k3
    FROM trained AS t
    JOIN statistics AS s ON s.run = t.run AND s.step = t.step AND s.segment_id = t.segment_id AND s.row = t.row
    LEFT JOIN sampled AS r ON r.run = t.run AND r.segment_id = t.segment_id AND r.row = t.row
    LEFT JOIN labels AS v ON v.run = t.run AND v.version = t.weight_version
    WHERE s.pair = 'backend' AND s.n > 0 AND s.step BETWEEN $lowest::BIGINT AND $highest::BIGINT
)
SELECT
    run, step, version, replica, cached, CASE WHEN NOT unlabelled THEN in_flight END AS in_flight,
    CASE WHEN NOT unlabelled THEN floor(lag + 0.5)::BIGINT END AS lag,
    count(*) AS sequences, sum(n)::BIGINT AS n,
    sum(sum_d) AS d, sum(sum_abs_d) AS abs_d, sum(sum_k3) AS k3,
    sum(n::DOUBLE * n) AS c_nn, sum(sum_abs_d * sum_abs_d) AS c_aa, sum(sum_abs_d * n) AS c_an
FROM measured
GROUP BY ALL
ORDER BY ALL
