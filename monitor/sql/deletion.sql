-- deletion_acknowledgements: Forgets who took care of alerts of $run. An episode's name begins with that of its run, which may hold a slash; of two runs whose names
-- fit, the longer is meant. To be run before the states are forgotten. Inputs: alert_states.
DELETE FROM alert_acknowledgements
WHERE starts_with(alert_acknowledgements.episode, $run || '/') AND NOT EXISTS (
    SELECT 1 FROM alert_states
    WHERE starts_with(alert_acknowledgements.episode, run || '/') AND starts_with(run, $run || '/')
)

-- deletion_deliveries: Forgets how the messages about $run were delivered. To be run before those are forgotten. Inputs: notifications.
DELETE FROM deliveries WHERE key IN (SELECT key FROM notifications WHERE run = $run)

-- deletion_tables: Tables that carry a run. Grain: table. Inputs: DuckDB's catalog. Parameters: none.
SELECT table_name
FROM duckdb_tables() JOIN duckdb_columns() USING (database_name, schema_name, table_name)
WHERE column_name = 'run' AND NOT duckdb_tables.internal AND NOT temporary AND database_name = current_database()
ORDER BY table_name
