-- Runs with computed steps at time `looked_at`: the newest step, the newest revision, when a step was last computed, and whether the run
-- is `live`: no more than ten seconds, and five times as long as its last steps took, have passed since then, and its records are of the
-- last day: an import is not live. Grain: run. Inputs: step_summaries.
WITH newest AS (
    SELECT run, max(step) AS step, max(revision) AS revision, max(computed_at) AS computed_at, max(time) AS time
    FROM step_summaries GROUP BY run
), pace AS (
    SELECT n.run, coalesce(epoch(max(s.time) - min(s.time)) / nullif(count(s.time) - 1, 0), 0) AS seconds
    FROM newest AS n JOIN step_summaries AS s ON s.run = n.run AND s.step > greatest(n.step, -9000000000000000000) - 10
    GROUP BY n.run
)
SELECT n.run, n.step, n.revision, n.computed_at, n.time,
       epoch(looked_at::TIMESTAMPTZ - n.computed_at) <= greatest(10, 5 * p.seconds)
           AND coalesce(epoch(n.computed_at - n.time) <= 86400, true) AS live
FROM newest AS n JOIN pace AS p ON p.run = n.run
