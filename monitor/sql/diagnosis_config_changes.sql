-- Steps of $run at which the trainer first got a sequence of another engine configuration than those before. Grain: configuration; the
-- first one is no change. Inputs: training_sequences, the rollout record each was joined with (rollout_sequences), folded_joins.
SELECT min(step) AS step
FROM (
    SELECT t.step, r.engine_config_id
    FROM training_sequences AS t
    JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run
    UNION ALL SELECT step, engine_config_id FROM folded_joins WHERE run = $run
)
WHERE engine_config_id IS NOT NULL
GROUP BY engine_config_id
ORDER BY step
OFFSET 1
