-- What the controller remembers of a run. Grain: one row or none. Inputs: controllers, controller_actions. Parameters: $run.
SELECT control, directives, (SELECT coalesce(max(number), 0) FROM controller_actions WHERE run = $run) AS actions
FROM controllers
WHERE run = $run
