-- What was said and done about $run, as marks on its charts: alerts that began to fire, actions of the correction controller, notes at a step.
-- Grain: mark, in the order of steps. Inputs: alert_transitions, controller_actions. `words` is null where an alert said nothing.
WITH marks AS (
    SELECT 'alert' AS kind, step, rule AS label, nullif(slice, '') AS slice, words, time
    FROM alert_transitions WHERE run = $run AND after = 'firing' AND before != 'recovering'
    UNION ALL
    SELECT 'correction', step, replace(name, '_', ' '), NULL, words, time FROM controller_actions WHERE run = $run
    UNION ALL
    SELECT 'note', step, words, NULL, author, time FROM annotations
    WHERE run = $run AND kind = 'note' AND step IS NOT NULL AND removed_at IS NULL
)
SELECT kind, step, label, slice, words FROM marks ORDER BY step, time, label
