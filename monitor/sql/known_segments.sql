-- Rows and tokens of segments that have been ingested. Grain: segment of incoming (Arrow: segment_id). Inputs: incoming, segments.
SELECT segment_id, rows, tokens FROM segments WHERE segment_id IN (SELECT segment_id FROM incoming)
