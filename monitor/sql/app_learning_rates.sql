-- How the learning rates of a run moved. Grain: movement. Inputs: step_records. Parameters: $run.
-- A learning rate is a scalar that the newest step calls so, of the lowest rank. Steps on which it moves the same way are one movement, `before` → `after`,
-- from `step` to `until`; a leap of more than a fifth, and five times the movement before it, is a movement of its own.
-- Reads the names and values of all scalars of all steps: not to be asked for with every look.
WITH newest AS (
    SELECT map_keys(scalars) AS names FROM step_records WHERE run = $run AND scalars IS NOT NULL ORDER BY step DESC LIMIT 1
), names AS (
    SELECT name FROM (SELECT unnest(names) AS name FROM newest) WHERE regexp_matches(name, '(^|/)(lr|learning_rate)$')
), entries AS (
    SELECT step, time, name AS label, scalars[name] AS value
    FROM step_records CROSS JOIN names
    WHERE run = $run
    QUALIFY row_number() OVER (PARTITION BY step, name ORDER BY rank NULLS LAST, time DESC) = 1
), rates AS (
    SELECT step, time, label, value AS after, lag(value) OVER in_order AS before, sign(after - before) AS way,
           if(after > 0 AND before > 0, abs(ln(after / before)), 0) AS size
    FROM entries WHERE value IS NOT NULL
    WINDOW in_order AS (PARTITION BY label ORDER BY step)
), turns AS (
    SELECT *, way IS DISTINCT FROM lag(way) OVER in_order
              OR (lag(size) OVER in_order > 0 AND size > greatest(0.2, 5 * lag(size) OVER in_order)) AS turned
    FROM rates
    WINDOW in_order AS (PARTITION BY label ORDER BY step)
), movements AS (
    SELECT *, count_if(turned) OVER (PARTITION BY label ORDER BY step) AS movement FROM turns
)
SELECT label, min(step) AS step, arg_min(before, step) AS before, arg_max(after, step) AS after, max(step) AS until
FROM movements WHERE way != 0 GROUP BY label, movement ORDER BY 2, 1
