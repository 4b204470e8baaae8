-- acceptances_read: What users have accepted of $runs (a list) and not withdrawn. `match`: the run, or the pattern that covers it.
-- Grain: run, cause; of several about one cause that of the run itself, then the newest. Input: acceptances.
SELECT r.run, a.run AS match, cause, because, up_to, author, accepted_at
FROM (SELECT unnest($runs::VARCHAR[]) AS run) AS r
JOIN acceptances AS a ON a.run = r.run OR (contains(a.run, '*') AND r.run GLOB a.run)
WHERE withdrawn_at IS NULL
QUALIFY row_number() OVER (PARTITION BY r.run, cause ORDER BY a.run = r.run DESC, accepted_at DESC) = 1
ORDER BY r.run, cause

-- acceptances_withdraw: Ends what is accepted of $cause in $run. Grain: acceptance.
UPDATE acceptances SET withdrawn_at = $now, withdrawn_by = $author
WHERE run = $run AND cause = $cause AND withdrawn_at IS NULL

-- acceptances_write: Notes that a cause is accepted. Grain: one acceptance. Inputs: its parts.
INSERT INTO acceptances (run, cause, because, up_to, author, accepted_at)
VALUES ($run, $cause, $because, $up_to, $author, $now)
