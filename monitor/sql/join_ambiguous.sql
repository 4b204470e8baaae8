-- Trained sequences whose tokens several rollout records have, or whose rollout record has the tokens of several: they stay without one. Grain:
-- training record. Inputs: incoming (Arrow).
UPDATE training_sequences AS s
SET
    joined_by = 'ambiguous',
    rollout_source = CASE WHEN s.rollout_source = 'received' THEN 'received' ELSE 'missing' END,
    rollout_segment = NULL, rollout_row = NULL, alignment = NULL, token_match = NULL, length_match = NULL, received_max_abs_diff = NULL,
    routes_match = NULL, routes_expected = NULL, routes_compared = NULL, routes_equal = NULL
FROM incoming AS i
WHERE s.segment_id = i.segment_id AND s.row = i.row
