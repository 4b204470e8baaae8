-- acceptances_read: What users have accepted of $runs (a list) and not withdrawn. `match`: the run, or the pattern that covers it.
-- Grain: run, cause; of several about one cause that of the run itself, then the newest. Input: user_actions.
WITH newest AS (
    FROM user_actions
    WHERE action IN ('finding accepted', 'acceptance withdrawn')
    QUALIFY row_number() OVER (PARTITION BY runs, what ORDER BY number DESC) = 1
)
SELECT r.run, a.runs AS match, what AS cause, words AS because, up_to, author, time AS accepted_at
FROM (SELECT unnest($runs::VARCHAR[]) AS run) AS r
JOIN newest AS a ON a.runs = r.run OR (contains(a.runs, '*') AND r.run GLOB a.runs)
WHERE action = 'finding accepted'
QUALIFY row_number() OVER (PARTITION BY r.run, cause ORDER BY a.runs = r.run DESC, number DESC) = 1
ORDER BY r.run, cause
