-- Training records of the steps $steps of $run and where their raw tokens lie. Grain: training record, in the order of steps. `gone`: the tokens
-- of its step are no longer complete.
-- `logprobs`: the engine's, of sequences of several requests; they need no rollout file. Inputs: training_sequences, segments, raw_files, rollout_sequences.
SELECT
    s.run, s.step, s.segment_id, s.row, s.n_total, s.rollout_source, s.rollout_segment, s.rollout_row,
    tf.path AS training_file, tf.location AS training_location, rf.path AS rollout_file, rf.location AS rollout_location, r.logprobs,
    bool_or(tf.path IS NULL OR (s.rollout_source = 'joined' AND rf.path IS NULL AND r.logprobs IS NULL)) OVER (PARTITION BY s.step) AS gone
FROM training_sequences AS s
LEFT JOIN segments AS t ON t.segment_id = s.segment_id
LEFT JOIN raw_files AS tf ON tf.path = t.raw_file
LEFT JOIN segments AS o ON o.segment_id = s.rollout_segment AND s.rollout_source = 'joined' AND s.joined_by IS DISTINCT FROM 'parts'
LEFT JOIN raw_files AS rf ON rf.path = o.raw_file
LEFT JOIN rollout_sequences AS r
    ON r.run = s.run AND r.segment_id = s.rollout_segment AND r.row = s.rollout_row AND s.rollout_source = 'joined' AND s.joined_by = 'parts'
WHERE s.run = $run AND s.step BETWEEN list_min($steps) AND list_max($steps) AND s.step IN (SELECT unnest($steps))
ORDER BY s.step, s.segment_id, s.row
