-- Corrects the versions of rollout records. Grain: one row per rollout record. Inputs: incoming (Arrow).
UPDATE rollout_sequences AS r SET spans = i.spans, decisions = i.decisions
FROM incoming AS i WHERE r.run = i.run AND r.segment_id = i.segment_id AND r.row = i.row
