-- fold_due: Steps that may be folded, those that were computed longest ago first: not among the newest $protected of their run, at rest since
-- $quiet_since, and complete for the profile job. Late arrivals of folded steps come
-- first, whatever their place. Grain: run and step, at most $most. Inputs: training_sequences, step_summaries,
-- profiled_steps, folded_steps.
WITH present AS (
    SELECT run, step, count(*) AS sequences FROM training_sequences
    WHERE NOT $only_again OR (run, step) IN (SELECT (run, step) FROM folded_steps)
    GROUP BY run, step
), placed AS (
    SELECT p.run, p.step, p.sequences, s.computed_at, s.revision, f.step IS NOT NULL AS again,
           row_number() OVER (PARTITION BY p.run ORDER BY p.step DESC) AS place
    FROM present AS p
    JOIN step_summaries AS s ON s.run = p.run AND s.step = p.step
    JOIN profiled_steps AS q ON q.run = p.run AND q.step = p.step AND q.revision >= s.revision
    LEFT JOIN folded_steps AS f ON f.run = p.run AND f.step = p.step
    WHERE s.computed_at <= $quiet_since::TIMESTAMPTZ
)
SELECT run, step, sequences, again, revision
FROM placed
WHERE (place > $protected OR again)
    AND (again OR NOT $only_again)
ORDER BY again DESC, computed_at, run, step
LIMIT $most

-- fold_forget_parts: Names of the parts of trajectories that go. Inputs: incoming (Arrow: run, step), training_sequences.
DELETE FROM training_parts AS p USING training_sequences AS t, incoming AS i
WHERE t.run = i.run AND t.step = i.step AND p.run = t.run AND p.segment_id = t.segment_id AND p.row = t.row

-- fold_forget_rollouts: Grain: rollout record. Inputs: incoming (Arrow: run, segment_id, row).
DELETE FROM rollout_sequences AS r USING incoming AS i
WHERE i.run = r.run AND i.segment_id = r.segment_id AND i.row = r.row

-- fold_forget_windows: Inputs: incoming (Arrow: run, first_step). Table: folded_profiles.
DELETE FROM folded_profiles WHERE (run, first_step) IN (SELECT DISTINCT (run, first_step) FROM incoming)

-- fold_joins: Counts how the sequences that are about to go were joined. Grain: see folded_joins. Inputs: incoming (Arrow: run, step),
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

-- fold_kept: What is kept of the steps $first to $last of $run (both included; null: no bound). Grain: one row. Inputs: folded_steps,
-- sampled_sequences. `folded`: steps of which only sums over all sequences are kept, from `first_folded` to `last_folded`; `sampled`:
-- sequences of these that are kept one by one, from step `sampled_from` on.
SELECT count(*) AS folded, min(step) AS first_folded, max(step) AS last_folded,
       (SELECT count(*) FROM sampled_sequences
        WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)) AS sampled,
       (SELECT min(step) FROM sampled_sequences
        WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)) AS sampled_from
FROM folded_steps
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)

-- fold_pairs: Sums of folded steps by pair. Grain: step of incoming (Arrow: run, step, place) and pair. `step`: the place of the step; see step_tables.
-- Inputs: incoming, folded_pairs.
SELECT i.place AS step, t.* EXCLUDE (run, step) FROM folded_pairs AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step

-- fold_products: Sums over sequences of products of their sums, what was folded earlier included: steps $steps of $run. Grain: step and pair.
-- Inputs: statistics, folded_pairs.
SELECT step, pair, sum(c_nn) AS c_nn, sum(c_dd) AS c_dd, sum(c_dn) AS c_dn, sum(c_aa) AS c_aa, sum(c_an) AS c_an,
       sum(c_qq) AS c_qq, sum(c_qn) AS c_qn
FROM (
    SELECT step, pair, n::DOUBLE * n AS c_nn, sum_d * sum_d AS c_dd, sum_d * n AS c_dn, sum_abs_d * sum_abs_d AS c_aa,
           sum_abs_d * n AS c_an, sum_ratio_m1 * sum_ratio_m1 AS c_qq, sum_ratio_m1 * n AS c_qn
    FROM statistics
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
    UNION ALL
    SELECT step, pair, c_nn, c_dd, c_dn, c_aa, c_an, c_qq, c_qn
    FROM folded_pairs
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
)
GROUP BY step, pair

-- fold_profiled: Folded steps are not profiled again: what they had is part of a window. Inputs: incoming (Arrow: run, step). Table: profiled_steps.
UPDATE profiled_steps SET revision = 9223372036854775807 WHERE (run, step) IN (SELECT (run, step) FROM incoming)

-- fold_profiles: Profiles of the windows of $width steps that the steps of incoming lie in, as they are once these are folded. Grain: window, pair,
-- dimension and bucket. Inputs: incoming (Arrow: run, step), profiles, folded_profiles.
SELECT run, first_step, first_step + $width - 1 AS last_step, pair, dimension, bucket,
       sum(n)::BIGINT AS n, sum(sum_d) AS sum_d, sum(sum_abs_d) AS sum_abs_d, sum(sum_k3) AS sum_k3
FROM (
    SELECT run, floor(step / $width)::BIGINT * $width AS first_step, pair, dimension, bucket, n, sum_d, sum_abs_d, sum_k3
    FROM profiles
    WHERE step BETWEEN (SELECT min(step) FROM incoming) AND (SELECT max(step) FROM incoming)
        AND (run, step) IN (SELECT (run, step) FROM incoming)
    UNION ALL
    SELECT run, first_step, pair, dimension, bucket, n, sum_d, sum_abs_d, sum_k3
    FROM folded_profiles
    WHERE (run, first_step) IN (SELECT (run, floor(step / $width)::BIGINT * $width) FROM incoming)
)
GROUP BY ALL
ORDER BY run, first_step, pair, dimension, bucket

-- fold_revisions: How the steps $steps of $run stand now. Grain: step. Inputs: step_summaries.
SELECT step, revision
FROM step_summaries
WHERE run = $run AND list_contains($steps::BIGINT[], step)

-- fold_rollouts: Counts the engine's records that are about to go, see fold_forget_rollouts. Grain: see folded_rollouts. Inputs: incoming (Arrow: run,
-- segment_id, row), rollout_sequences; a row that was made of several requests is none of the engine.
INSERT INTO folded_rollouts BY NAME
SELECT r.run, r.sampling_id, r.engine_config_id, count(*) FILTER (r.parts IS NULL) AS rollouts,
       count(*) FILTER (r.parts IS NULL AND len(list_filter(coalesce(r.spans, []), lambda span: span.version IS NOT NULL)) = 0) AS unversioned
FROM rollout_sequences AS r
JOIN incoming AS i ON i.run = r.run AND i.segment_id = r.segment_id AND i.row = r.row
GROUP BY ALL

-- fold_rollouts_due: Engine's records that no kept sequence needs once the steps $steps of $run are gone: those that only their sequences were joined
-- with, and those older than an hour before the oldest kept sequence, which nobody trained on. Grain: rollout record.
-- Inputs: training_sequences, rollout_sequences.
WITH joined AS (
    SELECT rollout_segment AS segment_id, rollout_row AS row,
           step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps)) AS goes
    FROM training_sequences
    WHERE run = $run AND rollout_segment IS NOT NULL
), requests AS (  -- of a trajectory, the records that its row was made of
    SELECT j.goes, unnest(r.parts) AS part
    FROM joined AS j
    JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = j.segment_id AND r.row = j.row AND r.parts IS NOT NULL
), trained AS (
    SELECT segment_id, row, bool_and(goes) AS goes
    FROM (FROM joined UNION ALL SELECT part.segment_id, part.row, goes FROM requests)
    GROUP BY ALL
), oldest AS (
    SELECT min(time) - INTERVAL 1 HOUR AS kept_since
    FROM training_sequences
    WHERE run = $run AND NOT (step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps)))
)
SELECT r.run, r.segment_id, r.row
FROM rollout_sequences AS r
LEFT JOIN trained AS t ON t.segment_id = r.segment_id AND t.row = r.row
WHERE r.run = $run AND coalesce(t.goes, r.time < (SELECT kept_since FROM oldest), false)

-- fold_sample: Keeps some sequences of the steps that are about to go: of each the $worst that add most to K3 of the pair "backend", those with
-- broken tokens before all others, and $chance by their sample id. Grain: sequence. Inputs: incoming (Arrow: run, step, again),
-- training_sequences, statistics, rollout_sequences. Of what comes late to a folded step nothing more is kept.
INSERT INTO sampled_sequences BY NAME
WITH placed AS (
    SELECT
        t.run, t.step, t.rank, t.sample_id, t.group_id, t.time, t.n_total, t.n_expected, t.reward, t.weight_version, t.rollout_source,
        t.alignment, t.token_match, t.length_match, t.tags, t.raw_kept, t.rollout_segment, t.rollout_row,
        s.n, s.n_expected - s.n AS broken, s.sum_d, s.sum_abs_d, s.sum_k3, s.min_d, s.max_d, t.rollout_versions, t.segment_id, t.row,
        CASE WHEN s.n IS NOT NULL THEN row_number() OVER (
            PARTITION BY t.run, t.step ORDER BY s.n IS NULL, s.n < s.n_expected DESC, s.sum_k3 DESC, t.segment_id, t.row
        ) END AS place,
        row_number() OVER (PARTITION BY t.run, t.step ORDER BY hash(t.sample_id), t.segment_id, t.row) <= $chance AS by_chance
    FROM training_sequences AS t
    JOIN incoming AS i ON i.run = t.run AND i.step = t.step AND NOT i.again
    LEFT JOIN statistics AS s
        ON s.run = t.run AND s.step = t.step AND s.segment_id = t.segment_id AND s.row = t.row AND s.pair = 'backend'
)
SELECT p.* EXCLUDE (rollout_versions), r.replica, known_versions(r.spans, p.rollout_versions, p.alignment) AS spans, r.cached_prefix_tokens, r.finish_reason
FROM placed AS p
LEFT JOIN rollout_sequences AS r ON r.run = p.run AND r.segment_id = p.rollout_segment AND r.row = p.rollout_row
WHERE p.by_chance OR p.place <= $worst
ORDER BY p.step, p.place

-- fold_size: How much of the store's file is in use, in bytes; blocks that were freed are used again first. Grain: one row.
SELECT (used_blocks * block_size)::BIGINT AS bytes, (free_blocks * block_size)::BIGINT AS free_bytes FROM pragma_database_size()

-- fold_steps: Sums of folded steps. Grain: step of incoming (Arrow: run, step, place). `step`: the place of the step; see step_tables. Inputs: incoming, folded_steps.
SELECT i.place AS step, time, sums FROM folded_steps AS t JOIN incoming AS i ON i.run = t.run AND i.step = t.step

-- fold_thin_sample: Takes back the samples of all but the newest $steps folded steps of each run. Inputs: sampled_sequences.
DELETE FROM sampled_sequences
WHERE (run, step) IN (
    SELECT (run, step) FROM (SELECT DISTINCT run, step FROM sampled_sequences)
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) > $steps
)
