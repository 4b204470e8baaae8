-- Trained sequences of several parts, one of which was corrected, are joined again. Grain: training record. Inputs: incoming (Arrow),
-- rollout_sequences, training_sequences.
UPDATE training_sequences AS s SET length_match = false
FROM incoming AS i JOIN rollout_sequences AS r ON r.run = i.run AND r.parts IS NOT NULL
WHERE s.run = r.run AND s.rollout_segment = r.segment_id AND s.rollout_row = r.row
    AND len(list_filter(r.parts, lambda p: p.segment_id = i.segment_id AND p."row" = i.row)) > 0
