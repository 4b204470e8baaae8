-- Queues them. Grain: run and sample. Inputs: incoming (Arrow), rollout_sequences.
INSERT INTO join_queue (run, sample_id)
SELECT DISTINCT r.run, r.sample_id
FROM incoming AS i JOIN rollout_sequences AS r ON r.run = i.run AND r.parts IS NOT NULL
WHERE len(list_filter(r.parts, lambda p: p.segment_id = i.segment_id AND p."row" = i.row)) > 0
