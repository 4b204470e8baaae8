-- Rollout records that were made of parts and are made again, or taken back. Grain: one row per such record, or per trained sequence it belongs
-- to. Inputs: incoming (Arrow).
DELETE FROM rollout_sequences AS r USING incoming AS i
WHERE r.run = i.run AND r.segment_id IN (i.segment_id, 'parts/' || i.segment_id) AND r.row = i.row
