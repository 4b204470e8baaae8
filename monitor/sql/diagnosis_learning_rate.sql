-- Since which step every learning rate of $run is 0, so that the policy stays as it is. Null: the newest one is not 0, or none was recorded. Grain: the run.
-- A learning rate is a scalar of that name, as in app_learning_rates. Reads the names and values of all scalars of all steps. Inputs: step_records.
WITH rates AS (
    SELECT step, list_max(list_transform(list_filter(map_entries(scalars), lambda e: regexp_matches(e.key, '(^|/)(lr|learning_rate)$')), lambda e: e.value)) AS rate
    FROM step_records WHERE run = $run AND scalars IS NOT NULL
), moved AS (
    SELECT coalesce(max(step) FILTER (rate != 0), -1) AS last FROM rates
)
SELECT min(step) AS since FROM rates CROSS JOIN moved WHERE rate = 0 AND step > last
