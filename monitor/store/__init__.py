"""The only owner of the DuckDB file: schema, statements, views, raw files, retention."""
