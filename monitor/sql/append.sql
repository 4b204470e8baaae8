-- Adds rows. Inputs: incoming (Arrow). {table}: to which table.
INSERT INTO {table} BY NAME SELECT * FROM incoming
