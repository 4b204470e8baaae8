-- The backend gap of steps $first to $last of $run (both included; null: no bound) by what may tell causes apart. Grain: replica,
-- `cached` (prompt tokens came from the prefix cache), `in_flight` (sampled by more than one weight version), `lag` (trainer's
-- version − that of the sequence's tokens, token mean, rounded half up, in versions); each null where unknown. With $steps (a list)
-- of these steps alone, and each for itself, and by `version` (number of the version that sampled, of a label that is none its place; token mean,
-- rounded half up); null: all together, and the columns step and version are null.
-- Columns `c_*`: see diagnosis_steps. Inputs: training_sequences, the rollout record each was joined with (rollout_sequences),
-- statistics of the pair "backend", weight_records (order of versions whose labels are no numbers).
WITH known AS (
    SELECT version, row_number() OVER (ORDER BY min(coalesce(applied_at, time)), version) AS place
    FROM weight_records WHERE run = $run AND version IS NOT NULL GROUP BY version
),
labels AS (
    SELECT version, coalesce(try_cast(version AS BIGINT), place) AS number
    FROM (SELECT DISTINCT weight_version AS version FROM training_sequences WHERE run = $run
          UNION SELECT version FROM known)
    LEFT JOIN known USING (version)
    WHERE version IS NOT NULL
),
rollouts AS (
    SELECT t.segment_id, t.row, r.replica, r.cached_prefix_tokens > 0 AS cached, known_versions(r.spans, t.rollout_versions, t.alignment) AS spans
    FROM training_sequences AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run AND (r.run IS NOT NULL OR t.rollout_versions IS NOT NULL)
        AND t.step >= coalesce($first::BIGINT, t.step) AND t.step <= coalesce($last::BIGINT, t.step)
),
spans AS (
    SELECT segment_id, row, replica, cached, span."version" AS version, span."end" - span."start" AS length
    FROM (SELECT * EXCLUDE spans, unnest(spans) AS span FROM rollouts WHERE len(spans) > 1)
),
-- Most sequences have one span, and need no grouping.
sampled AS (
    SELECT r.segment_id, r.row, r.replica, r.cached, r.spans[1]."version" IS NULL AS unlabelled, false AS in_flight,
           coalesce(v.number, try_cast(r.spans[1]."version" AS BIGINT)) AS number
    FROM rollouts AS r LEFT JOIN labels AS v ON v.version = r.spans[1]."version"
    WHERE coalesce(len(r.spans), 0) <= 1
    UNION ALL
    SELECT p.segment_id, p.row, any_value(p.replica), any_value(p.cached), count(*) > count(p.version),
           min(p.version) <> max(p.version),
           sum(coalesce(v.number, try_cast(p.version AS BIGINT)) * p.length) / nullif(sum(p.length), 0)
    FROM spans AS p LEFT JOIN labels AS v ON v.version = p.version
    GROUP BY p.segment_id, p.row
),
measured AS (
    SELECT CASE WHEN $steps IS NOT NULL THEN s.step END AS step, CASE WHEN $steps IS NOT NULL AND NOT r.unlabelled THEN floor(r.number + 0.5) END AS version, r.replica, r.cached, r.unlabelled, r.in_flight, v.number - r.number AS lag, s.n, s.sum_d, s.sum_abs_d, s.sum_k3
    FROM statistics AS s
    JOIN training_sequences AS t ON t.run = $run AND t.step = s.step AND t.segment_id = s.segment_id AND t.row = s.row
    LEFT JOIN sampled AS r ON r.segment_id = t.segment_id AND r.row = t.row
    LEFT JOIN labels AS v ON v.version = t.weight_version
    WHERE s.run = $run AND s.pair = 'backend' AND s.n > 0
        AND s.step >= coalesce($first::BIGINT, s.step) AND s.step <= coalesce($last::BIGINT, s.step)
        AND ($steps IS NULL OR s.step IN (SELECT unnest($steps::BIGINT[])))
)
SELECT
    step, version, replica, cached, CASE WHEN NOT unlabelled THEN in_flight END AS in_flight,
    CASE WHEN NOT unlabelled THEN floor(lag + 0.5)::BIGINT END AS lag,
    count(*) AS sequences, sum(n)::BIGINT AS n,
    sum(sum_d) AS d, sum(sum_abs_d) AS abs_d, sum(sum_k3) AS k3,
    sum(n::DOUBLE * n) AS c_nn, sum(sum_abs_d * sum_abs_d) AS c_aa, sum(sum_abs_d * n) AS c_an
FROM measured
GROUP BY ALL
ORDER BY ALL
