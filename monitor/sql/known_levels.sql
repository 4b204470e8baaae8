-- What healthy runs of $setup had, $run left out, the newest first. Grain: run. Inputs: diagnoses.
SELECT run, low, high FROM diagnoses WHERE setup = $setup AND run <> $run ORDER BY diagnosed_at DESC, run LIMIT 100
