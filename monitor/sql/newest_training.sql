-- Time of the newest training record of each rank of $runs. Grain: run and rank. Inputs: training_sequences.
SELECT run, rank AS place, max(time) AS newest FROM training_sequences WHERE list_contains($runs::VARCHAR[], run) GROUP BY run, rank
