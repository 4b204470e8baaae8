-- Rollout records that the join is about to make again of their parts. Grain: one row per trained sequence. Inputs: incoming (Arrow).
DELETE FROM rollout_sequences AS r USING incoming AS i WHERE r.run = i.run AND r.segment_id = i.segment_id AND r.row = i.row
