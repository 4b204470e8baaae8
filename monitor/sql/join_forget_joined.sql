-- Statistics with the r of rollout records that turned out not to be the only ones with these tokens. Grain: training record. Inputs: incoming
-- (Arrow), training_sequences.
DELETE FROM statistics AS s
USING incoming AS i JOIN training_sequences AS t ON t.segment_id = i.segment_id AND t.row = i.row AND t.rollout_source = 'joined'
WHERE s.segment_id = i.segment_id AND s.row = i.row AND s.pair IN ('backend', 'total')
