"""Storage of a data directory: DuckDB file, schema, statements, views, raw files, retention."""
