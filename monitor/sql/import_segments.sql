-- What imports have written of $run. Grain: segment. Inputs: segments, health_records. Parameters: $run. `time`: of its writer's records that state none, as the
-- note says with which they begin; `ends`: how often the writer has ended.
WITH noted AS (
    SELECT writer, min(time) AS time, count_if(event = 'closed') AS ends FROM health_records WHERE run = $run AND component = 'import' GROUP BY writer
)
SELECT writer, sequence, kind, rows, segment_id, time, coalesce(ends, 0) AS ends
FROM segments LEFT JOIN noted USING (writer)
WHERE run = $run AND starts_with(writer, 'import-')
