-- What a run's sequences can be sliced by, and what their metrics are computed from, read on one snapshot.
-- Grain: one row per training sequence and pair with statistics, one row (pair null) for a sequence without any; steps $first to
-- $last of $run (both included; null: no bound). `sequence` numbers sequences within the result. `versions`: tokens by the weight
-- version that sampled them, version null where unknown. Inputs: all_sequences, the rollout record each was joined
-- with (rollout_sequences), statistics.
WITH trained AS (
    SELECT rowid AS sequence, *
    FROM all_sequences
    WHERE repeated_by IS NULL AND run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
),
joined AS (
    SELECT t.*, r.replica, r.finish_reason,
           -- An engine that says nothing of adapters has none only if it would say so.
           coalesce(r.adapter, CASE WHEN r.decisions IS NOT NULL OR r.parts IS NOT NULL THEN 'none' END) AS adapter, r.cached_prefix_tokens,
           version_counts(t.pieces) AS counts,
           known_versions(engine_spans(r.spans, r.decisions, r.clock_offset, t.time), t.pieces) AS spans,
           -- What the engine sampled beyond the trained tokens, or the trainer appended, must not shift the lag.
           CASE WHEN t.alignment = 'prefix' OR (t.alignment IS NULL AND t.rollout_versions IS NOT NULL) THEN t.n_expected ELSE coalesce(r.n_tokens, t.n_expected) END AS n_sampled
    FROM trained AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
),
spanned AS (
    SELECT sequence, span.version AS version,
           sum(greatest(least(span."end", n_sampled) - greatest(span."start", 0), 0))::DOUBLE AS tokens
    FROM (SELECT sequence, n_sampled, unnest(spans) AS span FROM joined)
    GROUP BY ALL
),
versions AS (
    SELECT sequence, list({'version': version, 'tokens': tokens} ORDER BY version) AS versions, sum(tokens) AS covered
    FROM spanned GROUP BY sequence
)
SELECT
    j.sequence, j.step, j.rank, j.replica, j.adapter, j.finish_reason, j.cached_prefix_tokens, j.tags,
    j.n_expected AS sequence_tokens, j.reward, j.advantage_abs_sum, j.entropy_sum, j.entropy_n, j.token_match, j.length_match,
    j.routes_match, j.routes_expected, j.routes_compared, j.routes_equal,
    j.counts.compared AS versions_compared, j.counts.differing AS versions_differing,
    j.weight_version AS trainer_version,
    coalesce(v.versions, []) || CASE
        WHEN j.n_sampled > coalesce(v.covered, 0) THEN [{'version': NULL::VARCHAR, 'tokens': j.n_sampled - coalesce(v.covered, 0)}]
        ELSE []
    END AS versions,
    s.* EXCLUDE (run, step, segment_id, row)
FROM joined AS j
LEFT JOIN versions AS v USING (sequence)
LEFT JOIN statistics AS s ON s.run = $run AND s.step = j.step AND s.segment_id = j.segment_id AND s.row = j.row
ORDER BY j.sequence
