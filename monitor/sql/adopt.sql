-- adopt_known: Of $segment_ids, those that have been ingested, and the file that has their raw tokens by the ledger.
-- Grain: segment. Inputs: segments, raw_files. `path` null: none has.
SELECT segment_id, path
FROM segments LEFT JOIN raw_files ON path = raw_file
WHERE segment_id IN (SELECT unnest($segment_ids))

-- adopt_raw_kept: Sequences whose raw tokens are there after all. {table}: training_sequences, or sampled_sequences of folded steps.
-- Grain: training record. Inputs: incoming (Arrow: segment_id).
UPDATE {table} SET raw_kept = true WHERE segment_id IN (SELECT segment_id FROM incoming) AND NOT raw_kept

-- adopt_raw_places: Segments whose raw tokens are, after all, in the file $target. Grain: one row per segment. Inputs: incoming (Arrow: segment_id).
UPDATE segments SET raw_file = $target WHERE segment_id IN (SELECT segment_id FROM incoming)
