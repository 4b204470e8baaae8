-- Routes of a mixture of experts on both sides, of up to $each sequences of each rank in each of $steps, of 512 in all. Grain: training record and engine
-- request that sampled it (`turn`: its place among several; then `start` and `end` are its tokens under the mask, else null). Inputs:
-- training_sequences, rollout_sequences, raw Parquet files $training_files and $rollout_files. Parameters: $run, $steps, $each.
WITH places AS (
    SELECT step, rank, segment_id, row, rollout_segment, rollout_row,
           row_number() OVER (PARTITION BY step, rank ORDER BY hash(sample_id), segment_id, row) AS place
    FROM training_sequences
    WHERE run = $run AND step IN (SELECT unnest($steps)) AND route_layers > 0 AND token_match AND raw_kept AND rollout_segment IS NOT NULL
),
chosen AS (
    SELECT * EXCLUDE (place) FROM places WHERE place <= $each ORDER BY place, step DESC, rank, segment_id, row LIMIT 512
),
requests AS (
    SELECT c.*, 0 AS turn, NULL::INTEGER AS start, NULL::INTEGER AS "end", c.rollout_segment AS engine_segment, c.rollout_row AS engine_row
    FROM chosen AS c JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = c.rollout_segment AND r.row = c.rollout_row
    WHERE r.parts IS NULL
    UNION ALL
    SELECT c.*, p.turn - 1, r.parts[p.turn]."start", r.parts[p.turn]."end", r.parts[p.turn].segment_id, r.parts[p.turn]."row"
    FROM chosen AS c JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = c.rollout_segment AND r.row = c.rollout_row
    CROSS JOIN LATERAL (SELECT unnest(range(1, len(r.parts) + 1)) AS turn) AS p
    WHERE r.parts IS NOT NULL AND r.parts[p.turn]."start" IS NOT NULL
)
SELECT q.step, q.rank, q.segment_id, q.row, q.turn, q.start, q."end", t.token_ids, t.mask, t.routes,
       o.token_ids AS rollout_token_ids, o.routes AS rollout_routes
FROM requests AS q
JOIN read_parquet($training_files, union_by_name = true, hive_partitioning = false) AS t ON t.segment_id = q.segment_id AND t.row = q.row
JOIN read_parquet($rollout_files, union_by_name = true, hive_partitioning = false) AS o
    ON o.segment_id = q.engine_segment AND o.row = q.engine_row
WHERE o.routes IS NOT NULL AND t.routes IS NOT NULL
ORDER BY q.step, q.segment_id, q.row, q.turn
