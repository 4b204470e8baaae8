-- probe_budget: What $run has sampled, and what probes have cost it. Grain: one row. Old sequences are folded away, hence
-- the larger of two counts. Inputs: rollout_sequences, step_summaries, step_records.
SELECT
    greatest((SELECT coalesce(sum(n_tokens), 0)::BIGINT FROM rollout_sequences WHERE run = $run AND parts IS NULL),
             (SELECT coalesce(sum(tokens), 0)::BIGINT FROM step_summaries WHERE run = $run)) AS sampled,
    (SELECT coalesce(sum(scalars['probe/scored_tokens']), 0)::BIGINT FROM step_records WHERE run = $run) AS scored

-- probe_changes: What happened to the weights of $run between $since and $until, of the engine $replica (null: any). Grain: one row.
-- Inputs: weight_records, weight_readings.
SELECT
    (SELECT count(*) FROM weight_records
     WHERE run = $run AND coalesce(applied_at, time) BETWEEN $since::TIMESTAMPTZ AND $until::TIMESTAMPTZ
       AND (replica IS NULL OR $replica::VARCHAR IS NULL OR replica = $replica::VARCHAR))
    + (SELECT count(*) FROM weight_readings
       WHERE run = $run AND reason = 'unannounced' AND coalesce(applied_at, time) BETWEEN $since::TIMESTAMPTZ AND $until::TIMESTAMPTZ
         AND (replica IS NULL OR $replica::VARCHAR IS NULL OR replica = $replica::VARCHAR)) AS changes

-- probe_run: Runs by when an engine last recorded a sequence, the newest first. Grain: run. Input: rollout_sequences.
SELECT run, max(time) AS last_at FROM rollout_sequences GROUP BY run ORDER BY last_at DESC, run

-- probe_steps: Newest trained step of $run, and the oldest one after $after (null: none yet). Grain: one row. Input: training_sequences, folded_joins.
WITH steps AS (
    SELECT step FROM training_sequences WHERE run = $run UNION ALL SELECT step FROM folded_joins WHERE run = $run
)
SELECT max(step) AS newest, min(step) FILTER ($after::BIGINT IS NULL OR step > $after::BIGINT) AS following FROM steps
