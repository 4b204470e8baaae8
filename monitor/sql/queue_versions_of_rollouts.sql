-- Rollout records that marks may have come late for. Grain: one row per segment. Inputs: incoming (Arrow): rollout records.
INSERT INTO version_queue (run, segment_id) SELECT DISTINCT run, segment_id FROM incoming WHERE decisions IS NOT NULL
