-- What the collectors of a run say they have written, and how much of exactly that is stored. Each counts its sequences up to the segment
-- of its newest account (heartbeat or end), so that the two can be compared while it goes on writing.
-- Grain: one row. Inputs: health_records, segments. Parameters: $run. `collectors`: that give such an account; 0: nothing is known.
-- `missing`: quarantined, lost, or still in the spool; `surplus`: stored more often than written.
WITH accounts AS (
    SELECT writer, max_by(details, time) AS details FROM health_records
    WHERE run = $run AND event IN ('heartbeat', 'closed') AND json_valid(details) GROUP BY writer
), stated AS (
    SELECT writer, try_cast(details ->> '$.written.last' AS BIGINT) AS last,
           try_cast(details ->> '$.written.sequences' AS BIGINT) + try_cast(details ->> '$.reduced.sequences' AS BIGINT) AS sent
    FROM accounts
), arrived AS (
    SELECT writer, sum(rows)::BIGINT AS stored
    FROM segments JOIN stated USING (writer)
    WHERE run = $run AND kind IN ('training', 'statistics', 'rollout') AND sequence <= last GROUP BY writer
), refused AS (
    SELECT writer, sum(sequences)::BIGINT AS bad_rows
    FROM health_records
    WHERE run = $run AND event = 'bad_rows' AND regexp_matches(details, '\.(training|statistics|rollout)\.') GROUP BY writer
)
SELECT count(*) AS collectors, coalesce(sum(sent), 0)::BIGINT AS sent, coalesce(sum(stored), 0)::BIGINT AS stored,
       coalesce(sum(greatest(sent - coalesce(stored, 0) - coalesce(bad_rows, 0), 0)), 0)::BIGINT AS missing,
       coalesce(sum(greatest(coalesce(stored, 0) - sent, 0)), 0)::BIGINT AS surplus
FROM stated LEFT JOIN arrived USING (writer) LEFT JOIN refused USING (writer)
WHERE sent IS NOT NULL AND last IS NOT NULL
