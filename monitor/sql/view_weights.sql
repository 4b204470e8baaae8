-- Weight updates. Grain: one row per observation (a version seen by the trainer, and by each engine). Input: weight_records.
SELECT * FROM weight_records
