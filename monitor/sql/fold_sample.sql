-- Keeps some sequences of the steps that are about to go: of each the $worst that add most to K3 of the pair "backend", those with
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
