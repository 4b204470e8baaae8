-- From which steps on the trainer got sequences of another engine setup of $run: its first ones, or the first after five steps without any.
-- `setup`: what decides how log-probs are computed, see macro_deciding; engines that differ in nothing else are one. Grain: step and setup; the first one is no change.
-- Inputs: training_sequences, the rollout record each was joined with (rollout_sequences), step_summaries, config_records.
WITH setups AS (
    SELECT fingerprint, coalesce(md5(deciding(document)), fingerprint) AS setup
    FROM (SELECT fingerprint, any_value(document) AS document FROM config_records WHERE run = $run AND kind = 'engine_config' GROUP BY fingerprint)
), joined AS (
    SELECT t.step, r.engine_config_id
    FROM training_sequences AS t
    JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run
    UNION ALL SELECT step, unnest(engines) FROM step_summaries WHERE run = $run AND frozen_at IS NOT NULL
), seen AS (
    SELECT DISTINCT j.step, coalesce(s.setup, j.engine_config_id) AS setup, dense_rank() OVER (ORDER BY j.step) AS place
    FROM joined AS j LEFT JOIN setups AS s ON s.fingerprint = j.engine_config_id
    WHERE j.engine_config_id IS NOT NULL
)
SELECT step, setup FROM seen
QUALIFY coalesce(place - lag(place) OVER (PARTITION BY setup ORDER BY step) > 5, true)
ORDER BY step, setup
