-- Grain: one row per segment of $segment_ids that has been ingested. Inputs: segments.
SELECT segment_id FROM segments WHERE segment_id IN (SELECT unnest($segment_ids))
