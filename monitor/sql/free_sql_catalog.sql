-- What free SQL can name. Grain: table (kind "table", with what shows a changed schema), view or macro (with its definition).
-- Tables first. Parameters: none.
SELECT 'table' AS kind, table_name AS name, sql FROM duckdb_tables() WHERE NOT internal AND NOT temporary AND database_name = current_database()
UNION ALL
SELECT 'view', view_name, sql FROM duckdb_views() WHERE NOT internal AND NOT temporary AND database_name = current_database()
UNION ALL
SELECT 'macro', function_name, format('CREATE MACRO "{}"({}) AS TABLE {}', function_name, array_to_string(parameters, ', '), macro_definition)
FROM duckdb_functions() WHERE NOT internal AND function_type = 'table_macro' AND database_name = current_database()
UNION ALL
SELECT 'macro', function_name, format('CREATE MACRO "{}"({}) AS {}', function_name, array_to_string(parameters, ', '), macro_definition)
FROM duckdb_functions() WHERE NOT internal AND function_type = 'macro' AND database_name = current_database()
ORDER BY kind, name
