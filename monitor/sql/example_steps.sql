-- Newest steps. Grain: step. Input: steps.
SELECT *
FROM steps
WHERE run = $run
ORDER BY step DESC
LIMIT 20
