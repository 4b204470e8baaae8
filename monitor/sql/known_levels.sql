-- known_levels_forget: $run is no known-good run. Grain: run. Inputs: known_levels.
DELETE FROM known_levels WHERE run = $run

-- known_levels_note: What a healthy run had. Grain: run. Parameters: the columns of known_levels.
INSERT OR REPLACE INTO known_levels (run, setup, settings, low, high, noted_at) VALUES ($run, $setup, $settings, $low, $high, $noted_at)

-- known_levels_of: What runs of $setup had, $run left out, the newest first. Grain: run. Inputs: known_levels.
SELECT run, low, high FROM known_levels WHERE setup = $setup AND run <> $run ORDER BY noted_at DESC, run LIMIT 100

-- known_levels_setups: Setups of which a known-good run is kept, $run left out, the newest first. Grain: setup. Inputs: known_levels.
SELECT setup, any_value(settings) AS settings, count(*) AS runs FROM known_levels WHERE run <> $run
GROUP BY setup ORDER BY max(noted_at) DESC, setup LIMIT 200
