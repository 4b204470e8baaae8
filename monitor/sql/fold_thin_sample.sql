-- Takes back the samples of all but the newest $steps folded steps of each run. Inputs: sampled_sequences.
DELETE FROM sampled_sequences
WHERE (run, step) IN (
    SELECT (run, step) FROM (SELECT DISTINCT run, step FROM sampled_sequences)
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) > $steps
)
