-- Raw records of one kind as the collectors wrote them, from files on the disk. Grain: one row per sequence, token-level data as lists.
-- Inputs: Parquet files below raw/ in raw_files. Patterns and listings see files on their way in and out, too; the semi-join
-- with raw_files, read in the same snapshot, decides what counts, so nothing is seen twice while files are being merged.
SELECT * EXCLUDE (filename)
FROM read_parquet({files}, filename = true, union_by_name = true, hive_partitioning = false)
WHERE filename IN (SELECT {home} || path FROM raw_files WHERE kind = {kind} AND location IS NULL)
