-- Newest trained step of $run, and the oldest one after $after (null: none yet). Grain: one row. Input: training_sequences, folded_joins.
WITH steps AS (
    SELECT step FROM training_sequences WHERE run = $run UNION ALL SELECT step FROM folded_joins WHERE run = $run
)
SELECT max(step) AS newest, min(step) FILTER ($after::BIGINT IS NULL OR step > $after::BIGINT) AS following FROM steps
