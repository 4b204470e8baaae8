-- Steps $first to $last (null: no bound) of $run, and whether their metrics can be computed again from raw tokens: all of a step's sequences
-- are stored, with the trainer's tokens and, where r is the engine's, with its tokens. Grain: step.
-- Inputs: training_sequences, segments, rollout_sequences (made of several requests: they hold their own log-probs), folded_steps, step_summaries.
WITH records AS (
    SELECT s.step, s.n_total,
           t.raw_file IS NOT NULL
               AND (s.rollout_source <> 'joined' OR s.joined_by IS NOT DISTINCT FROM 'parts' OR o.raw_file IS NOT NULL) AS kept
    FROM training_sequences AS s
    LEFT JOIN segments AS t ON t.segment_id = s.segment_id
    LEFT JOIN segments AS o ON o.segment_id = s.rollout_segment
    WHERE s.run = $run
),
steps AS (
    SELECT step, count(*) AS sequences, sum(n_total)::BIGINT AS tokens, count(*) FILTER (NOT kept) AS missing FROM records GROUP BY step
),
folded AS (
    SELECT DISTINCT step FROM folded_steps WHERE run = $run
)
SELECT
    step, coalesce(sequences, 0) AS sequences, coalesce(tokens, 0)::BIGINT AS tokens,
    CASE
        WHEN step IN (FROM folded) THEN 'folded'
        WHEN sequences IS NULL THEN 'no sequences'
        WHEN missing = sequences THEN 'raw tokens are gone'
        WHEN missing > 0 THEN 'raw tokens of some sequences are gone'
    END AS kept
FROM (SELECT step FROM step_summaries WHERE run = $run) FULL JOIN steps USING (step)
WHERE coalesce(step >= $first::BIGINT, true) AND coalesce(step <= $last::BIGINT, true)
ORDER BY step
