-- Counts the engine's records that are about to go, see fold_forget_rollouts. Grain: see folded_rollouts. Inputs: incoming (Arrow: run,
-- segment_id, row), rollout_sequences; a row that the join made of several requests is none of the engine.
INSERT INTO folded_rollouts BY NAME
SELECT r.run, r.sampling_id, r.engine_config_id, count(*) FILTER (r.parts IS NULL) AS rollouts,
       count(*) FILTER (r.parts IS NULL AND len(list_filter(coalesce(r.spans, []), lambda span: span.version IS NOT NULL)) = 0) AS unversioned
FROM rollout_sequences AS r
JOIN incoming AS i ON i.run = r.run AND i.segment_id = r.segment_id AND i.row = r.row
GROUP BY ALL
