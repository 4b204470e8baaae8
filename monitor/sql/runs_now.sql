-- Runs with records, and how their steps stand. Grain: run. Inputs: segments, live_runs, step_summaries, returns.
-- `last_arrival`: of a segment. Of runs with computed steps: the newest `step` and when it was computed (`newest_computed_at`), `revision` (grows whenever a step
-- was recomputed), the step that the newest records are of (`trained_step`; after a return to a checkpoint that is not the highest) and when they
-- were made (`made_at`, by our clock as far as is known), `live_until` and `dated_ahead`, see live_runs.
-- `returned_to`: the first steps that its returns to a checkpoint have trained again (null: it never returned); `resumed_step`: of the newest one.
WITH arrived AS (
    SELECT run, max(ingested_at) AS last_arrival FROM segments GROUP BY run
), resumed AS (
    SELECT run, arg_max(step, began) AS resumed_step, list(step) AS returned_to FROM returns GROUP BY run
), computed AS (
    SELECT l.run, l.step, l.revision, l.live_until, l.dated_ahead, coalesce(l.time - to_microseconds((1e6 * l.dated_ahead)::BIGINT), l.computed_at) AS made_at,
           max(s.step) FILTER (coalesce(s.time = l.time, l.time IS NULL)) AS trained_step, max(s.computed_at) FILTER (s.step = l.step) AS newest_computed_at
    FROM live_runs(NULL) AS l
    JOIN step_summaries AS s ON s.run = l.run
    GROUP BY ALL
)
SELECT run, last_arrival, step, newest_computed_at, revision, trained_step, made_at, live_until, coalesce(dated_ahead, 0) AS dated_ahead, returned_to, resumed_step
FROM arrived FULL JOIN computed USING (run) LEFT JOIN resumed USING (run)
ORDER BY run
