-- Grain: rollout record. Inputs: incoming (Arrow: run, segment_id, row).
DELETE FROM rollout_sequences AS r USING incoming AS i
WHERE i.run = r.run AND i.segment_id = r.segment_id AND i.row = r.row
