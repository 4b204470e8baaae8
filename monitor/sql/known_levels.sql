-- known_levels_forget: $runs are no known-good runs. Grain: run. Inputs: known_levels.
DELETE FROM known_levels WHERE list_contains($runs::VARCHAR[], run)

-- known_levels_note: What healthy runs had. Grain: run. Input: incoming (the columns of known_levels).
INSERT OR REPLACE INTO known_levels BY NAME FROM incoming

-- known_levels_of: What runs of $setup had, $run left out, the newest first. Grain: run. Inputs: known_levels.
SELECT run, low, high FROM known_levels WHERE setup = $setup AND run <> $run ORDER BY noted_at DESC, run LIMIT 100

-- known_levels_setups: Setups of which a known-good run is kept, $run left out, the newest first. Grain: setup. Inputs: known_levels.
SELECT setup, any_value(settings) AS settings, count(*) AS runs FROM known_levels WHERE run <> $run
GROUP BY setup ORDER BY max(noted_at) DESC, setup LIMIT 200
