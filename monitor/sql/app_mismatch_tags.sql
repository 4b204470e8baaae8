-- Names of the tags of training sequences of the steps $first to $last of $run, at most $most of them, the most frequent first.
-- Grain: name. Inputs: training_sequences.
SELECT name, count(*) AS sequences
FROM (
    SELECT unnest(map_keys(tags)) AS name
    FROM training_sequences WHERE run = $run AND step BETWEEN $first AND $last
)
GROUP BY name
ORDER BY sequences DESC, name
LIMIT $most
