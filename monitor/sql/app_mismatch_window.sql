-- The newest of the steps $first to $last of $run that have at most $most sequences together; one step at least. Grain: one row.
-- Folded steps, of which no sequences are kept, do not count; where there are no others it is the last step, with no sequences.
-- Inputs: step_summaries, folded_steps.
WITH counted AS (
    SELECT step, sequences, sum(sequences) OVER (ORDER BY step DESC) AS together
    FROM step_summaries
    WHERE run = $run AND step BETWEEN $first AND $last AND step NOT IN (SELECT step FROM folded_steps WHERE run = $run)
)
SELECT coalesce(min(step), $last) AS first, coalesce(max(step), $last) AS last, count(*) AS steps,
       coalesce(sum(sequences), 0)::BIGINT AS sequences
FROM counted WHERE together <= $most OR together = sequences
