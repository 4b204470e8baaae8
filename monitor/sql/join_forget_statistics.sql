-- Statistics that the join is about to rewrite. Grain: one row per training record and pair. Inputs: incoming (Arrow).
DELETE FROM statistics AS s
USING incoming AS i
WHERE s.segment_id = i.segment_id AND s.row = i.row AND s.pair IN ('backend', 'total') AND i.backend IS NOT NULL
