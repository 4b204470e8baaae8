-- How large the store's file is. Grain: one row; sizes as text. Parameters: none.
SELECT database_size, wal_size FROM pragma_database_size()
