-- app_data_quarantine: Files that were moved aside, the newest first, at most $limit of them; `total`: of all.
-- Grain: file. Input: quarantine. Parameters: $limit.
SELECT path, origin, run, reason, message, bytes, moved_at, count(*) OVER () AS total
FROM quarantine
ORDER BY moved_at DESC, path
LIMIT $limit

-- app_data_schema: What SQL can read: views first, then tables. Grain: column, in order. Parameters: none.
SELECT c.table_name AS name, v.view_name IS NOT NULL AS is_view, c.column_name AS column, c.data_type AS type
FROM duckdb_columns() AS c LEFT JOIN duckdb_views() AS v ON v.view_name = c.table_name AND NOT v.internal
WHERE NOT c.internal
ORDER BY is_view DESC, name, c.column_index
