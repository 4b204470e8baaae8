-- Of $segment_ids, those that have been ingested, and the file on the disk or object that has their raw tokens by the ledger.
-- Grain: segment. Inputs: segments, raw_files. `path` null: none has.
SELECT segment_id, path, location
FROM segments LEFT JOIN raw_files ON path = raw_file
WHERE segment_id IN (SELECT unnest($segment_ids))
