-- Makes new Parquet files exist for readers. Grain: one row per file. Inputs: incoming (Arrow).
INSERT INTO raw_files BY NAME SELECT * FROM incoming
