-- What the controller remembers of $runs (a list). Grain: run of which it remembers anything. Inputs: controllers, controller_actions.
SELECT run, control, directives, coalesce(actions, 0) AS actions
FROM controllers
LEFT JOIN (SELECT run, max(number) AS actions FROM controller_actions GROUP BY run) USING (run)
WHERE list_contains($runs::VARCHAR[], run)
