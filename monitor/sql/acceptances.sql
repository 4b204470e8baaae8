-- acceptances_policy: What the home's policy has accepted of runs, and not taken back. Grain: run, cause. Input: acceptances.
SELECT run, cause, because, up_to FROM acceptances WHERE withdrawn_at IS NULL AND source = 'policy' ORDER BY run, cause

-- acceptances_read: What people have accepted of $run (null: of all runs) and not withdrawn. Grain: run, cause; of several about one cause the newest, and a
-- person's before the policy's. Input: acceptances.
SELECT run, cause, because, up_to, was, author, source, accepted_at
FROM acceptances
WHERE withdrawn_at IS NULL AND run = coalesce($run, run)
QUALIFY row_number() OVER (PARTITION BY run, cause ORDER BY source = 'policy', accepted_at DESC) = 1
ORDER BY run, cause

-- acceptances_withdraw: Ends what is accepted of $cause in $run: what the policy accepted ($policy) or what people did. Grain: acceptance.
UPDATE acceptances SET withdrawn_at = $now, withdrawn_by = $author
WHERE run = $run AND cause = $cause AND withdrawn_at IS NULL AND (source = 'policy') = $policy

-- acceptances_write: Notes that a cause is accepted. Grain: one acceptance. Inputs: its parts.
INSERT INTO acceptances (run, cause, because, up_to, was, author, source, accepted_at)
VALUES ($run, $cause, $because, $up_to, $was, $author, $source, $now)
