-- Worst sequences. Grain: sequence. Input: sequences.
SELECT step, sample_id, replica, n AS tokens, sum_k3 / n AS k3, max_d, reward
FROM sequences
WHERE run = $run AND n > 0
ORDER BY k3 DESC
LIMIT 50
