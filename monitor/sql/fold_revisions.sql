-- How the steps $steps of $run stand now. Grain: step. `dirty`: it received data since it was computed. Inputs: step_summaries, dirty_steps.
SELECT step, revision, step IN (SELECT step FROM dirty_steps WHERE run = $run) AS dirty
FROM step_summaries
WHERE run = $run AND list_contains($steps::BIGINT[], step)
