-- known_levels_of: What healthy runs of $setup had, $run left out, the newest first. Grain: run. Inputs: diagnoses.
SELECT run, low, high FROM diagnoses WHERE setup = $setup AND run <> $run ORDER BY diagnosed_at DESC, run LIMIT 100

-- known_levels_setups: Setups of healthy runs, $run left out, the newest first. Grain: setup. Inputs: diagnoses.
SELECT setup, any_value(settings) AS settings, count(*) AS runs FROM diagnoses WHERE run <> $run AND setup IS NOT NULL
GROUP BY setup ORDER BY max(diagnosed_at) DESC, setup LIMIT 200
