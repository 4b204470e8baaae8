-- Runs with steps that were computed since their growth was judged last. Grain: run. `live`: see live_runs. `judged`: whether it ever was;
-- `step`, `verdict`, `changed_step`: of that judgement. Inputs: live_runs, growth_now. Parameters: $now.
SELECT n.run, n.live, g.run IS NOT NULL AS judged, g.step, g.verdict, g.changed_step
FROM live_runs($now::TIMESTAMPTZ) AS n
LEFT JOIN growth_now AS g ON g.run = n.run
WHERE n.revision > coalesce(g.revision, -1)
ORDER BY n.revision DESC
