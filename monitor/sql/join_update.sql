-- Writes what the join found out. Grain: one row per training record. Inputs: incoming (Arrow).
UPDATE training_sequences AS s
SET
    rollout_source = i.rollout_source,
    rollout_segment = i.rollout_segment,
    rollout_row = i.rollout_row,
    alignment = i.alignment,
    joined_by = i.joined_by,
    token_match = i.token_match,
    length_match = i.length_match,
    received_max_abs_diff = i.received_max_abs_diff,
    routes_match = i.routes_match,
    routes_expected = i.routes_expected,
    routes_compared = i.routes_compared,
    routes_equal = i.routes_equal
FROM incoming AS i
WHERE s.segment_id = i.segment_id AND s.row = i.row
