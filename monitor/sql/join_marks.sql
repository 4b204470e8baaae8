-- The oldest $samples marks of the join queue. Grain: one row: the highest of them, null when the queue is empty, how many they are
-- (`taken`), and how many marks there are in all (`waiting`). Inputs: join_queue. Parameters: $samples, $resting (runs that are left alone
-- for now).
SELECT max(mark) AS high, count(*) AS taken, (SELECT count(*) FROM join_queue) AS waiting
FROM (SELECT mark FROM join_queue WHERE NOT list_contains($resting, run) ORDER BY mark LIMIT $samples)
