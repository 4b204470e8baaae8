-- Steps that may be folded, those that were computed longest ago first: not among the newest $protected of their run, at rest since
-- $quiet_since, complete for the step job and the profile job, and with none of their samples waiting for the join. Late arrivals of folded steps come
-- first, whatever their place. Grain: run and step, at most $most. Inputs: training_sequences, step_summaries, dirty_steps, join_queue,
-- profiled_steps, folded_steps.
WITH present AS (
    SELECT run, step, count(*) AS sequences FROM training_sequences
    WHERE NOT $only_again OR (run, step) IN (SELECT (run, step) FROM folded_steps)
    GROUP BY run, step
), placed AS (
    SELECT p.run, p.step, p.sequences, s.computed_at, s.revision, f.step IS NOT NULL AS again,
           row_number() OVER (PARTITION BY p.run ORDER BY p.step DESC) AS place
    FROM present AS p
    JOIN step_summaries AS s ON s.run = p.run AND s.step = p.step
    JOIN profiled_steps AS q ON q.run = p.run AND q.step = p.step AND q.revision >= s.revision
    LEFT JOIN folded_steps AS f ON f.run = p.run AND f.step = p.step
    WHERE s.computed_at <= $quiet_since::TIMESTAMPTZ
)
SELECT run, step, sequences, again, revision
FROM placed
WHERE (place > $protected OR again)
    AND (run, step) NOT IN (SELECT (run, step) FROM dirty_steps)
    AND (run, step) NOT IN (
        SELECT (t.run, t.step) FROM join_queue AS q JOIN training_sequences AS t ON t.run = q.run AND t.sample_id = q.sample_id
    )
    AND (again OR NOT $only_again)
ORDER BY again DESC, computed_at, run, step
LIMIT $most
