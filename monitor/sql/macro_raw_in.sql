-- Raw records of one kind in given files. Grain: one row per sequence, token-level data as lists. Inputs: `files`, as the ledger names them.
SELECT * FROM read_parquet(files, union_by_name = true, hive_partitioning = false)
