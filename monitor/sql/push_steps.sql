-- The first steps of a run in a range, with all metrics and scalars. Grain: step. Inputs: steps.
-- Parameters: $run, $after (excluded), $up_to (included), $count.
SELECT * FROM steps WHERE run = $run AND step > $after AND step <= $up_to ORDER BY step LIMIT $count
