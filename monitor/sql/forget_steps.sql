-- Forgets all rows of some steps. Inputs: incoming (Arrow: run, step). {table}: of which table.
DELETE FROM {table} AS t USING incoming AS i WHERE t.run = i.run AND t.step = i.step
