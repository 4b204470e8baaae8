-- recompute_forget: Statistics that are about to be written again. Grain: one row per training record and pair. Inputs: incoming (Arrow: place).
DELETE FROM statistics WHERE rowid IN (SELECT place FROM incoming)

-- recompute_places: Which statistics may be replaced, and where they are stored. Grain: one row per row of incoming (Arrow: number, KEY) and pair, without records
-- that are gone and pairs whose r has become another one's since they were computed: a tick has computed those itself.
-- `place`: null where there are none. Inputs: incoming, training_sequences, statistics. Parameters: the range of steps, for the zone maps.
SELECT i.number, p.pair, t.rowid AS place
FROM incoming AS i
JOIN training_sequences AS s ON s.run = i.run AND s.segment_id = i.segment_id AND s.row = i.row
CROSS JOIN (VALUES ('backend'), ('update'), ('total'), ('reference')) AS p (pair)
LEFT JOIN statistics AS t
    ON t.run = i.run AND t.segment_id = i.segment_id AND t.row = i.row AND t.pair = p.pair AND t.run = $run AND t.step BETWEEN $first AND $last
WHERE s.run = $run AND s.step BETWEEN $first AND $last AND (
    p.pair IN ('update', 'reference')
    OR s.rollout_source = i.rollout_source
        AND (s.rollout_source <> 'joined' OR (s.rollout_segment, s.rollout_row) IS NOT DISTINCT FROM (i.rollout_segment, i.rollout_row))
)
ORDER BY i.number

-- recompute_sequences: Training records of the steps $steps of $run and where their raw tokens lie. Grain: training record, in the order of steps. `gone`: the tokens
-- of its step are no longer complete.
-- `logprobs`: the engine's, of sequences of several requests; they need no rollout file. Inputs: training_sequences, segments, raw_files, rollout_sequences.
SELECT
    s.run, s.step, s.segment_id, s.row, s.n_total, s.rollout_source, s.rollout_segment, s.rollout_row,
    tf.path AS training_file, rf.path AS rollout_file, r.logprobs,
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

-- recompute_sums: What the trainer reported token by token, summed again. Grain: one row per training record. Inputs: incoming (Arrow).
UPDATE training_sequences AS s
SET advantage_abs_sum = i.advantage_abs_sum, entropy_sum = i.entropy_sum, entropy_n = i.entropy_n
FROM incoming AS i
WHERE s.run = i.run AND s.segment_id = i.segment_id AND s.row = i.row
