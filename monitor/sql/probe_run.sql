-- Runs by when an engine last recorded a sequence, the newest first. Grain: run. Input: rollout_sequences.
SELECT run, max(time) AS last_at FROM rollout_sequences GROUP BY run ORDER BY last_at DESC, run
