-- What $run has sampled, and what probes have cost it. Grain: one row. Old sequences are folded away, hence
-- the larger of two counts. Inputs: rollout_sequences, step_summaries, step_records.
SELECT
    greatest((SELECT coalesce(sum(n_tokens), 0)::BIGINT FROM rollout_sequences WHERE run = $run AND parts IS NULL),
             (SELECT coalesce(sum(tokens), 0)::BIGINT FROM step_summaries WHERE run = $run)) AS sampled,
    (SELECT coalesce(sum(scalars['probe/scored_tokens']), 0)::BIGINT FROM step_records WHERE run = $run) AS scored
