-- app_data_collectors: The collectors of $run: where each runs, what it said of itself last, and what has arrived of it.
-- Grain: writer and component, the one heard last first. Inputs: health_records, segments. Parameters: $run.
-- `started`: JSON of its start; `counters`: JSON of its newest account (heartbeat or end); null: it has sent none. What has arrived is
-- by writer: it is null beside the second component of a writer.
WITH signs AS (
    SELECT writer, component, max(time) AS last_sign, bool_or(event = 'closed') AS closed,
           max_by(details, time) FILTER (event = 'started') AS started,
           max_by(details, time) FILTER (event IN ('heartbeat', 'closed')) AS counters,
           max_by(message, time) FILTER (event = 'self_test') AS self_test,
           max_by(severity, time) FILTER (event = 'self_test') AS self_test_severity,
           max_by(message, time) FILTER (event = 'host_failed') AS failed
    FROM health_records WHERE run = $run GROUP BY writer, component
), arrivals AS (
    SELECT writer, count(*) AS segments, sum(tokens)::BIGINT AS tokens, max(ingested_at) AS last_segment
    FROM segments WHERE run = $run GROUP BY writer
), numbered AS (
    SELECT *, row_number() OVER (PARTITION BY writer ORDER BY component) AS place FROM signs
)
SELECT coalesce(n.writer, a.writer) AS writer, component, coalesce(closed, false) AS closed, last_sign, started, counters, self_test,
       self_test_severity, failed, segments, tokens, last_segment
FROM numbered AS n FULL JOIN arrivals AS a ON a.writer = n.writer AND n.place = 1
ORDER BY coalesce(last_sign, last_segment) DESC, writer, component

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

-- app_data_store: How large the store's file is. Grain: one row; sizes as text. Parameters: none.
SELECT database_size, wal_size FROM pragma_database_size()
