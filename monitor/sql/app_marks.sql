-- What happened in $run, as marks on its charts: alerts that began to fire or got worse, actions of the correction controller.
-- Grain: mark, in the order of steps. Inputs: notifications, controller_actions.
WITH marks AS (
    SELECT 'alert' AS kind, step, rule AS label, document ->> '$.summary' AS words, time
    FROM notifications WHERE run = $run AND state = 'firing' AND document ->> '$.undelivered' IS NULL
    UNION ALL
    SELECT 'correction', step, replace(name, '_', ' '), words, time FROM controller_actions WHERE run = $run
)
SELECT kind, step, label, words FROM marks ORDER BY step, time, label
