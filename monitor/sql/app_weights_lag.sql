-- Which weights sampled the tokens of each replica. Grain: step, replica, trainer's version and version of the tokens. Inputs:
-- training_sequences, rollout_sequences (the record each was joined with). Parameters: $run, $first, $last (both included).
WITH joined AS (
    SELECT t.step, r.replica, t.weight_version AS trainer_version, known_versions(r.spans, t.pieces) AS spans,
           -- What the engine sampled beyond the trained tokens must not shift the lag.
           CASE WHEN t.alignment = 'prefix' OR (t.alignment IS NULL AND t.rollout_versions IS NOT NULL) THEN t.n_expected ELSE coalesce(r.n_tokens, t.n_expected) END AS n
    FROM training_sequences AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run AND (r.spans IS NOT NULL OR t.rollout_versions IS NOT NULL) AND t.step BETWEEN $first AND $last
)
SELECT step, replica, trainer_version, span.version AS version,
       sum(greatest(least(span."end", n) - greatest(span."start", 0), 0))::BIGINT AS tokens
FROM (SELECT step, replica, trainer_version, n, unnest(spans) AS span FROM joined)
GROUP BY ALL
ORDER BY step, replica
