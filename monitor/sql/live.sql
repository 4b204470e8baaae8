-- live_found: What is found out later about training records: another rollout record or other versions than before, or an attempt that has replaced
-- them. Grain: training record. Inputs: incoming (Arrow: key, and what is set).
UPDATE all_sequences AS s
SET
    rollout_source = i.rollout_source,
    rollout_segment = i.rollout_segment,
    rollout_row = i.rollout_row,
    alignment = i.alignment,
    joined_by = i.joined_by,
    token_match = i.token_match,
    length_match = i.length_match,
    received_max_abs_diff = i.received_max_abs_diff,
    routes_match = i.routes_match,
    routes_expected = i.routes_expected,
    routes_compared = i.routes_compared,
    routes_equal = i.routes_equal,
    pieces = i.pieces,
    repeated_by = i.repeated_by,
    began = i.began
FROM incoming AS i
WHERE s.run = i.run AND s.step = i.step AND s.segment_id = i.segment_id AND s.row = i.row

-- live_forget_statistics: Statistics of training records that are written again. Grain: training record and pair. Inputs: incoming (Arrow: key).
DELETE FROM all_statistics AS s
USING incoming AS i
WHERE s.run = i.run AND s.step = i.step AND s.segment_id = i.segment_id AND s.row = i.row

-- live_step_records: Which attempt has replaced step records: those of the rank of a sequence that was replaced, from before that attempt began. To be
-- run after live_found. Grain: step record. Inputs: incoming (Arrow: run, step), all_sequences.
UPDATE all_step_records AS r SET repeated_by = (
    SELECT min(o.repeated_by) FROM all_sequences AS o
    WHERE o.run = r.run AND o.step = r.step AND o.rank IS NOT DISTINCT FROM r.rank AND r.time < o.began
)
WHERE (r.run, r.step) IN (SELECT (run, step) FROM incoming)

-- live_versions: Rollout records whose versions late marks have changed. Grain: rollout record. Inputs: incoming (Arrow: key, spans).
UPDATE rollout_sequences AS r SET spans = i.spans, engine_spans = coalesce(r.engine_spans, r.spans, [])
FROM incoming AS i WHERE r.run = i.run AND r.segment_id = i.segment_id AND r.row = i.row

-- live_named: What marks make of records of engines about their weights. Grain: weight record. Inputs: incoming (Arrow: key, and what is written).
UPDATE all_weights AS w
SET named = i.named, named_step = i.named_step, named_at = i.named_at, is_update = i.is_update, unannounced = i.unannounced
FROM incoming AS i WHERE w.run = i.run AND w.segment_id = i.segment_id AND w.row = i.row

-- live_parts: Rollout records that are parts of sequences. Grain: one row per row of incoming (Arrow: number, run, segment_id, row), in its order.
-- Inputs: incoming, rollout_sequences.
SELECT r.run, r.sample_id, r.segment_id, r.row, r.group_id, r.replica, r.time, r.prompt_length, r.prompt_hash, r.cached_prefix_tokens,
       r.finish_reason, r.sampling_id, r.engine_config_id, r.trajectory, r.adapter, r.adapter_id
FROM incoming AS i JOIN rollout_sequences AS r ON r.run = i.run AND r.segment_id = i.segment_id AND r.row = i.row
ORDER BY i.number

-- live_forget_summaries: Summaries of steps that are written again; gives how far they were profiled. Grain: run and step. Inputs: incoming (Arrow:
-- run, step).
DELETE FROM step_summaries AS s USING incoming AS i WHERE s.run = i.run AND s.step = i.step
RETURNING s.run, s.step, s.profiled, s.profiled_tokens

-- live_summaries: Adds summaries of steps, and gives their revisions. Grain: run and step. Inputs: incoming (Arrow).
INSERT INTO step_summaries BY NAME SELECT *, nextval('revision') AS revision FROM incoming RETURNING run, step, revision
