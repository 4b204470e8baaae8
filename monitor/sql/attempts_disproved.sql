-- Sequences that were set aside for older ones, of the runs of incoming (Arrow: run, step), although their writer has recorded after the attempt
-- that was taken for the newer one had begun: two sessions at a time. Grain: training record. Inputs: older_sequences, training_sequences, segments.
WITH last_records AS (
    SELECT t.run, s.writer, max(t.time) AS last
    FROM training_sequences AS t JOIN segments AS s USING (segment_id)
    WHERE t.run IN (SELECT run FROM incoming) AND t.run IN (SELECT run FROM older_sequences)
    GROUP BY ALL
)
SELECT o.run, o.step, o.segment_id, o.row
FROM older_sequences AS o JOIN last_records AS l ON l.run = o.run AND l.writer = o.writer
WHERE o.writer <> o.repeated_by AND l.last >= o.began
