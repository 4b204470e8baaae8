-- The smallest coverage of the steps of each of $runs between its numbers in $first and $last, but for those whose engine records may still
-- be on their way. Grain: run. Inputs: step_metrics, runs_on_their_way.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
), complete AS (
    SELECT m.run, m.value
    FROM step_metrics AS m
    JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
    ANTI JOIN runs_on_their_way($runs::VARCHAR[], now()) AS w ON w.run = m.run AND w.step = m.step
    WHERE m.metric = 'backend.coverage'
)
SELECT a.run, min(c.value) AS coverage FROM asked AS a LEFT JOIN complete AS c ON c.run = a.run GROUP BY a.run
