"""People's SQL: judged by DuckDB's own parser, run in a process that cannot write, with its own limits."""
