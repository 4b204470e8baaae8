-- Forgets all rows of some steps. Inputs: incoming (Arrow: run, step). {table}: of which table.
DELETE FROM {table}
WHERE step BETWEEN (SELECT min(step) FROM incoming) AND (SELECT max(step) FROM incoming)
    AND (run, step) IN (SELECT (run, step) FROM incoming)
