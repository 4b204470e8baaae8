-- user_actions_of: What users did about $run by its name (null: all that they did), newest first. Grain: action. Inputs: user_actions.
SELECT time, author, action, if(what IS NULL, key, concat_ws('/', runs, what)) AS subject,
       concat_ws(', ', words, 'up to K3 ' || format('{:.2g}', up_to), strftime(until, 'until %Y-%m-%d %H:%M UTC')) AS words
FROM user_actions
WHERE $run IS NULL OR runs = $run
ORDER BY number DESC

-- user_actions_write: Appends what a user did; what was done before under the same key stays as it is. Grain: one row. Inputs: its parts.
INSERT INTO user_actions (time, author, action, key, runs, what, until, up_to, words)
VALUES ($time, $author, $action, $key, $runs, $what, $until, $up_to, $words)
ON CONFLICT DO NOTHING
