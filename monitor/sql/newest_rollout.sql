-- Time of the newest rollout record of each replica of $runs. Grain: run and replica. Inputs: rollout_sequences.
SELECT run, replica AS place, max(time) AS newest FROM rollout_sequences WHERE list_contains($runs::VARCHAR[], run) GROUP BY run, replica
