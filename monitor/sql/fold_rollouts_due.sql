-- Engine's records that no kept sequence needs once the steps $steps of $run are gone: those that only their sequences were joined
-- with, and those older than an hour before the oldest kept sequence, which nobody trained on. Grain: rollout record.
-- Inputs: training_sequences, rollout_sequences.
WITH joined AS (
    SELECT rollout_segment AS segment_id, rollout_row AS row,
           step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps)) AS goes
    FROM training_sequences
    WHERE run = $run AND rollout_segment IS NOT NULL
), requests AS (  -- of a trajectory, the records that its row was made of
    SELECT j.goes, unnest(r.parts) AS part
    FROM joined AS j
    JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = j.segment_id AND r.row = j.row AND r.parts IS NOT NULL
), trained AS (
    SELECT segment_id, row, bool_and(goes) AS goes
    FROM (FROM joined UNION ALL SELECT part.segment_id, part.row, goes FROM requests)
    GROUP BY ALL
), oldest AS (
    SELECT min(time) - INTERVAL 1 HOUR AS kept_since
    FROM training_sequences
    WHERE run = $run AND NOT (step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps)))
)
SELECT r.run, r.segment_id, r.row
FROM rollout_sequences AS r
LEFT JOIN trained AS t ON t.segment_id = r.segment_id AND t.row = r.row
WHERE r.run = $run AND coalesce(t.goes, r.time < (SELECT kept_since FROM oldest), false)
