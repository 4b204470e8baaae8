-- Which of the rarer ways to join can find anything for queued samples (mark <= $high, run not $resting). Grain: one row. `parts`: some are
-- of several engine requests, see join_trajectories. `unmet`: some are of runs in which no sample id has met yet, see join_by_tokens.
-- Inputs: join_queue, training_parts, training_sequences, rollout_sequences.
WITH queued AS (
    SELECT DISTINCT run, sample_id FROM join_queue WHERE mark <= $high
)
SELECT
    EXISTS (SELECT 1 FROM queued SEMI JOIN training_parts USING (run))
        OR EXISTS (SELECT 1 FROM queued AS q JOIN rollout_sequences AS r ON r.run = q.run AND r.trajectory = q.sample_id) AS parts,
    EXISTS (
        SELECT 1 FROM (SELECT DISTINCT run FROM queued WHERE NOT list_contains($resting, run))
        ANTI JOIN (SELECT run FROM training_sequences WHERE joined_by IN ('id', 'parts')) USING (run)
        SEMI JOIN rollout_sequences USING (run)
    ) AS unmet
