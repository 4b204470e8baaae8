-- Ends what is accepted of $cause in $run: what the policy accepted ($policy) or what people did. Grain: acceptance.
UPDATE acceptances SET withdrawn_at = $now, withdrawn_by = $author
WHERE run = $run AND cause = $cause AND withdrawn_at IS NULL AND (source = 'policy') = $policy
