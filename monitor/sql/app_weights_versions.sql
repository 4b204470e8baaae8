-- The gap by the one weight version that sampled a sequence: steps $first to $last of $run (both included). `version` is null for
-- sequences of several versions (`mixed`), and for those with a token of which it is not known. Grain: version and `mixed`. `first_step`,
-- `last_step`: of the steps that trained on it. Inputs: statistics of the pair "backend", training_sequences, rollout_sequences (the
-- record each was joined with). Needs no raw tokens.
WITH measured AS (
    SELECT s.step, s.n, s.n_expected - s.n AS broken, s.sum_k3, s.sum_abs_d,
           CASE WHEN len(list_filter(known_versions(r.spans, t.pieces), lambda x: x."version" IS NULL)) = 0
                THEN list_distinct(list_transform(known_versions(r.spans, t.pieces), lambda x: x."version")) END AS versions
    FROM statistics AS s
    JOIN training_sequences AS t ON t.run = $run AND t.step = s.step AND t.segment_id = s.segment_id AND t.row = s.row
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE s.run = $run AND s.pair = 'backend' AND s.step BETWEEN $first AND $last
), labelled AS (
    SELECT *, CASE WHEN len(versions) = 1 THEN versions[1] END AS label, coalesce(len(versions) > 1, false) AS several FROM measured
)
SELECT label AS version, several AS mixed, count(*) AS sequences, sum(n)::BIGINT AS tokens, sum(broken)::BIGINT AS broken,
       sum(sum_k3) / nullif(sum(n), 0) AS k3_kl, sum(sum_abs_d) / nullif(sum(n), 0) AS logprob_abs_diff_mean,
       min(step) AS first_step, max(step) AS last_step
FROM labelled
GROUP BY label, several
ORDER BY several, try_cast(label AS BIGINT) DESC NULLS LAST, label DESC NULLS LAST
