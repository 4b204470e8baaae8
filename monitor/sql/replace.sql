-- Adds rows in place of those with the same key. Inputs: incoming (Arrow). {table}: to which table.
INSERT OR REPLACE INTO {table} BY NAME SELECT * FROM incoming
