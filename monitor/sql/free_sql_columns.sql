-- Columns of a table of the store. Grain: column. Parameters: table.
SELECT column_name FROM duckdb_columns()
WHERE table_name = $table AND schema_name = 'main' AND NOT internal AND database_name = current_database()
