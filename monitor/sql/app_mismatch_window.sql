-- The newest of the steps $first to $last of $run that have at most $most sequences together; one step at least. Grain: one row.
-- Inputs: step_summaries.
WITH counted AS (
    SELECT step, sequences, sum(sequences) OVER (ORDER BY step DESC) AS together
    FROM step_summaries WHERE run = $run AND step BETWEEN $first AND $last
)
SELECT min(step) AS first, max(step) AS last, count(*) AS steps, sum(sequences)::BIGINT AS sequences
FROM counted WHERE together <= $most OR together = sequences
