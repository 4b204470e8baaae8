-- Makes Parquet files cease to exist for readers. Grain: one row per file. Inputs: incoming (Arrow: path).
DELETE FROM raw_files WHERE path IN (SELECT path FROM incoming)
