-- When the newest step of $run from $first on was made, and when its trainer was last told of a correction. Grain: one row.
-- Inputs: step_summaries, controller_actions.
SELECT
    (SELECT max(time) FROM step_summaries WHERE run = $run AND step >= $first) AS made,
    (SELECT max(time) FROM controller_actions WHERE run = $run AND name = 'switched_on') AS told
