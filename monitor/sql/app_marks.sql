-- What happened in $run, as marks on its charts: alerts that began to fire, actions of the correction controller.
-- Grain: mark, in the order of steps. Inputs: alert_transitions, controller_actions. `words` is null where an alert said nothing.
WITH marks AS (
    SELECT 'alert' AS kind, step, rule AS label, nullif(slice, '') AS slice, words, time
    FROM alert_transitions WHERE run = $run AND after = 'firing' AND before != 'recovering'
    UNION ALL
    SELECT 'correction', step, replace(name, '_', ' '), NULL, words, time FROM controller_actions WHERE run = $run
)
SELECT kind, step, label, slice, words FROM marks ORDER BY step, time, label
