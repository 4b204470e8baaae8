-- Rollout records that the join made of parts and makes again, or takes back. Grain: one row per such record, or per trained sequence it belongs
-- to. Inputs: incoming (Arrow).
DELETE FROM rollout_sequences AS r USING incoming AS i
WHERE r.run = i.run AND r.segment_id IN (i.segment_id, 'parts/' || i.segment_id) AND r.row = i.row
