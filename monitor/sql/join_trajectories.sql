-- Trained sequences that were sampled in several engine requests, and the rollout record of each request. Grain: one row per training record
-- and part, for records that a queued sample (mark <= $high) belongs to and that are not known to match, or whose part turns out to have
-- several records. Inputs: join_queue, training_parts, training_sequences, rollout_sequences, segments.
-- Parameters: $clock (seconds by which clocks of machines may differ).
-- A sequence whose parts its trainer named waits until all have arrived. One that was named at the engine (`trajectory`) takes those that are
-- there, in the order of their prompts, each of which holds what came before. Without raw tokens
-- of all parts and of the trainer the places of the parts cannot be found.
-- `several`: a part has records with the same tokens that were there before the training, and their log-probs or versions differ.
WITH queued AS (
    SELECT DISTINCT run, sample_id FROM join_queue WHERE mark <= $high
),
touched AS (
    SELECT p.run, p.segment_id, p.row FROM queued AS q JOIN training_parts AS p ON p.run = q.run AND p.part_id = q.sample_id
    UNION
    SELECT s.run, s.segment_id, s.row FROM queued AS q JOIN training_sequences AS s ON s.run = q.run AND s.sample_id = q.sample_id
),
open AS (
    SELECT s.*, (s.token_match AND s.length_match) IS TRUE AND s.joined_by IS DISTINCT FROM 'tokens' AS matched
    FROM touched AS t JOIN training_sequences AS s ON s.run = t.run AND s.segment_id = t.segment_id AND s.row = t.row
),
by_trainer AS (
    SELECT s.segment_id, s.row, p.place, r.segment_id AS rollout_segment, r.row AS rollout_row, s.time AS trained_at, r.time AS sampled_at,
        (r.token_hash, r.n_tokens) AS tokens, (coalesce(r.logprob_sum, 'nan'), hash(r.spans)) AS said,
        row_number() OVER (
            PARTITION BY s.segment_id, s.row, p.place
            ORDER BY coalesce(r.time <= s.time, false) DESC, abs(epoch_us(s.time) - epoch_us(r.time)) NULLS LAST, r.segment_id, r.row
        ) AS rank
    FROM open AS s
    JOIN training_parts AS p ON p.run = s.run AND p.segment_id = s.segment_id AND p.row = s.row
    JOIN rollout_sequences AS r ON r.run = s.run AND r.sample_id = p.part_id AND r.parts IS NULL
),
by_engine AS (
    SELECT s.segment_id, s.row,
        dense_rank() OVER (PARTITION BY s.segment_id, s.row ORDER BY r.prompt_length, r.token_hash, r.n_tokens)::INTEGER AS place,
        r.segment_id AS rollout_segment, r.row AS rollout_row, s.time AS trained_at, r.time AS sampled_at,
        (r.token_hash, r.n_tokens) AS tokens, (coalesce(r.logprob_sum, 'nan'), hash(r.spans)) AS said,
        row_number() OVER (
            PARTITION BY s.segment_id, s.row, r.prompt_length, r.token_hash, r.n_tokens ORDER BY r.time DESC, r.segment_id, r.row
        ) AS rank
    FROM open AS s
    JOIN rollout_sequences AS r ON r.run = s.run AND r.trajectory = s.sample_id AND r.parts IS NULL
    WHERE s.part_ids IS NULL
),
parts AS (
    SELECT *, min(said) FILTER (before) OVER alike IS DISTINCT FROM max(said) FILTER (before) OVER alike AS several
    FROM (
        SELECT *, coalesce(sampled_at <= trained_at + to_seconds($clock::DOUBLE), true) AS before FROM (FROM by_trainer UNION ALL FROM by_engine)
    )
    WINDOW alike AS (PARTITION BY segment_id, row, place, tokens)
    QUALIFY rank = 1
)
SELECT s.run, s.step, s.segment_id, s.row, s.sample_id, s.n_total, s.n_expected, s.rollout_source, p.place, r.segment_id AS rollout_segment,
       r.row AS rollout_row, r.sample_id AS part_id, r.* EXCLUDE (run, sample_id, segment_id, row, parts, logprobs, route_layers, decisions),
       0 AS route_layers, t.raw_file AS training_file, o.raw_file AS rollout_file, bool_or(p.several) OVER of_record AS several
FROM parts AS p
JOIN open AS s ON s.segment_id = p.segment_id AND s.row = p.row
JOIN rollout_sequences AS r ON r.segment_id = p.rollout_segment AND r.row = p.rollout_row AND r.run = s.run
LEFT JOIN segments AS t ON t.segment_id = s.segment_id
LEFT JOIN segments AS o ON o.segment_id = r.segment_id
WINDOW of_record AS (PARTITION BY s.segment_id, s.row)
QUALIFY (s.part_ids IS NULL OR count(*) OVER of_record = len(s.part_ids))
    AND bool_and(t.raw_file IS NOT NULL AND o.raw_file IS NOT NULL) OVER of_record
    AND CASE WHEN bool_or(p.several) OVER of_record THEN s.joined_by IS DISTINCT FROM 'ambiguous' ELSE NOT s.matched END
ORDER BY s.run, s.step, s.segment_id, s.row, p.place
