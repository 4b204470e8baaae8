-- The newest $most requests of the engines in $run, oldest first, and what the trainer made of each. Aborted ones are left out: their tokens may be trained as
-- part of a later request. Grain: rollout record. `trained_at`: when tokens of it were first trained; null: never, or all of them are masked. `first`, `last`: weight
-- versions that sampled its ends. `until`: every rank has recorded training up to then. `missing`: trained sequences that belong to no rollout record, and
-- sequences that recorders lost. Of steps that are frozen nothing is known. Inputs: rollout_sequences, all_sequences, step_summaries, health_records.
WITH kept AS (
    SELECT time, rank, n_expected, reward, rollout_segment, rollout_row FROM all_sequences WHERE run = $run
), bounds AS (
    SELECT (SELECT min(last) FROM (SELECT max(time) AS last FROM kept GROUP BY rank)) AS until,
           CASE WHEN EXISTS (SELECT 1 FROM step_summaries WHERE run = $run AND frozen_at IS NOT NULL) THEN (SELECT min(time) FROM kept) END AS since
), requests AS (
    SELECT segment_id, row, time, n_tokens, -logprob_sum / nullif(n_logprobs, 0) AS entropy, coalesce(group_id, prompt_hash) AS prompt,
           try_cast(spans[1]."version" AS BIGINT) AS first, try_cast(spans[-1]."version" AS BIGINT) AS last
    FROM rollout_sequences
    WHERE run = $run AND parts IS NULL AND time >= coalesce((SELECT since FROM bounds), time) AND finish_reason IS DISTINCT FROM 'abort'
    ORDER BY time DESC, segment_id, row LIMIT $most
), whole AS (
    SELECT k.*, r.parts FROM kept AS k JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = k.rollout_segment AND r.row = k.rollout_row
    WHERE k.time >= (SELECT min(time) FROM requests) - INTERVAL 1 HOUR  -- clocks of machines may differ
), used AS (
    SELECT rollout_segment AS segment_id, rollout_row AS row, time, n_expected, reward FROM whole WHERE parts IS NULL
    UNION ALL
    SELECT part.segment_id, part."row", time, n_expected, reward FROM (SELECT *, unnest(parts) AS part FROM whole WHERE parts IS NOT NULL)
), trained AS (
    SELECT segment_id, row, min(time) FILTER (n_expected > 0) AS trained_at, any_value(reward) AS reward FROM used GROUP BY ALL
), missing AS (
    SELECT (SELECT count(*) FROM kept WHERE rollout_segment IS NULL AND time >= (SELECT min(time) FROM requests))
         + (SELECT coalesce(sum(sequences), 0) FROM health_records WHERE run = $run AND event NOT IN ('raw_reduced', 'raw_sampled')) AS missing
)
SELECT epoch(r.time) AS time, r.n_tokens, r.entropy, r.prompt, r.first, r.last, epoch(t.trained_at) AS trained_at, t.reward,
       epoch(b.until) AS until, m.missing::BIGINT AS missing
FROM requests AS r LEFT JOIN trained AS t ON t.segment_id = r.segment_id AND t.row = r.row CROSS JOIN bounds AS b CROSS JOIN missing AS m
WHERE b.until IS NOT NULL
ORDER BY r.time, r.segment_id, r.row
