-- deletion_tables: Tables that carry a run. Grain: table. Inputs: DuckDB's catalog. Parameters: none.
SELECT table_name
FROM duckdb_tables() JOIN duckdb_columns() USING (database_name, schema_name, table_name)
WHERE column_name = 'run' AND NOT duckdb_tables.internal AND NOT temporary AND database_name = current_database()
ORDER BY table_name
