-- Which statistics may be replaced, and where they are stored. Grain: one row per row of incoming (Arrow: number, KEY) and pair, without records
-- that are gone and pairs whose r has become another one's since they were computed: the join has computed those itself.
-- `place`: null where there are none. Inputs: incoming, training_sequences, statistics. Parameters: the range of steps, for the zone maps.
SELECT i.number, p.pair, t.rowid AS place
FROM incoming AS i
JOIN training_sequences AS s ON s.run = i.run AND s.segment_id = i.segment_id AND s.row = i.row
CROSS JOIN (VALUES ('backend'), ('update'), ('total'), ('reference')) AS p (pair)
LEFT JOIN statistics AS t
    ON t.run = i.run AND t.segment_id = i.segment_id AND t.row = i.row AND t.pair = p.pair AND t.run = $run AND t.step BETWEEN $first AND $last
WHERE s.run = $run AND s.step BETWEEN $first AND $last AND (
    p.pair IN ('update', 'reference')
    OR s.rollout_source = i.rollout_source
        AND (s.rollout_source <> 'joined' OR (s.rollout_segment, s.rollout_row) IS NOT DISTINCT FROM (i.rollout_segment, i.rollout_row))
)
ORDER BY i.number
