-- Inputs: incoming (Arrow: run, step). Table: profiles.
DELETE FROM profiles
WHERE step BETWEEN (SELECT min(step) FROM incoming) AND (SELECT max(step) FROM incoming)
    AND (run, step) IN (SELECT (run, step) FROM incoming)
