-- Sequences of a batch that were in the store before it, or come twice in it: the same sample of the same call (its time, to the
-- microsecond), with the same tokens, in another segment. Samples that are trained on again, in a later step or call, are none.
-- Grain: one row per segment that brings any. Inputs: incoming (Arrow), training_sequences (with the batch), segments.
INSERT INTO doubled BY NAME
WITH arrived AS (
    SELECT DISTINCT segment_id FROM incoming
), again AS (
    SELECT i.run, i.segment_id, i.row, i.step, i.sample_id, i.n_total AS tokens, min(t.segment_id) AS first_in
    FROM incoming AS i
    JOIN training_sequences AS t
      ON t.run = i.run AND t.sample_id = i.sample_id AND t.time = i.time AND t.n_total = i.n_total
     AND t.token_hash IS NOT DISTINCT FROM i.token_hash AND t.step = i.step AND t.rank IS NOT DISTINCT FROM i.rank AND t.n_expected = i.n_expected
    WHERE t.segment_id <> i.segment_id
      AND (t.segment_id < i.segment_id OR t.segment_id NOT IN (FROM arrived))
    GROUP BY ALL
)
SELECT run, coalesce((SELECT kind FROM segments WHERE segments.segment_id = again.segment_id), 'training') AS kind, segment_id, count(*) AS sequences,
       sum(tokens)::BIGINT AS tokens, min(step) AS first_step, max(step) AS last_step, min(sample_id) AS example, min(first_in) AS first_in,
       now() AS found_at
FROM again GROUP BY run, segment_id
