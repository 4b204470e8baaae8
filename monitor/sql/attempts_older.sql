-- Sequences of the steps of incoming (Arrow: run, step) that a later attempt has trained again: a trainer of the same rank said that it begins at
-- that step or before it, after they were recorded, and has recorded the step since. Their writer is that trainer itself, or has
-- recorded nothing after that beginning. Grain: training record. Inputs: training_sequences, health_records, segments.
WITH begins AS (
    SELECT run, writer, time AS began, step AS first_step, try_cast(details ->> '$.rank' AS INTEGER) AS rank
    FROM health_records
    WHERE event = 'training_begins' AND step IS NOT NULL AND run IN (SELECT run FROM incoming)
), candidates AS (
    SELECT t.run, t.step, t.rank, t.time, t.segment_id, t.row, s.writer
    FROM training_sequences AS t
    JOIN incoming AS i ON i.run = t.run AND i.step = t.step
    JOIN segments AS s ON s.segment_id = t.segment_id
), last_records AS (
    SELECT t.run, s.writer, max(t.time) AS last
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run IN (SELECT run FROM begins)
    GROUP BY ALL
)
SELECT c.run, c.step, c.segment_id, c.row, c.writer, max_by(b.writer, b.began) AS repeated_by, max(b.began) AS began
FROM candidates AS c
JOIN begins AS b ON b.run = c.run AND b.rank IS NOT DISTINCT FROM c.rank AND b.first_step <= c.step AND b.began > c.time
JOIN last_records AS l ON l.run = c.run AND l.writer = c.writer
WHERE (c.writer = b.writer OR l.last < b.began) AND EXISTS (
    FROM candidates AS again
    WHERE again.run = c.run AND again.step = c.step AND again.rank IS NOT DISTINCT FROM c.rank
        AND again.writer = b.writer AND again.time >= b.began
)
GROUP BY c.run, c.step, c.segment_id, c.row, c.writer
