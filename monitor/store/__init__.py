"""The one owner of a home's DuckDB file: schema, statements, views, raw files beside it, retention."""
