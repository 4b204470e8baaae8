-- What the home's policy has accepted of runs, and not taken back. Grain: run, cause. Input: acceptances.
SELECT run, cause, because, up_to FROM acceptances WHERE withdrawn_at IS NULL AND source = 'policy' ORDER BY run, cause
