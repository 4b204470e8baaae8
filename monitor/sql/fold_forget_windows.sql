-- Inputs: incoming (Arrow: run, first_step). Table: folded_profiles.
DELETE FROM folded_profiles WHERE (run, first_step) IN (SELECT DISTINCT (run, first_step) FROM incoming)
