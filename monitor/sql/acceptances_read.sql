-- What people have accepted of $run (null: of all runs) and not withdrawn. Grain: run, cause; of several about one cause the newest, and a
-- person's before the policy's. Input: acceptances.
SELECT run, cause, because, up_to, was, author, source, accepted_at
FROM acceptances
WHERE withdrawn_at IS NULL AND run = coalesce($run, run)
QUALIFY row_number() OVER (PARTITION BY run, cause ORDER BY source = 'policy', accepted_at DESC) = 1
ORDER BY run, cause
