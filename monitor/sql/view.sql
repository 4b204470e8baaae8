-- view_abandoned_steps: Computed steps that the newest attempt (see attempts) has still to train again: all that is known of them is of older attempts, so
-- they say nothing of how the run stands. Grain: run and step. Inputs: step_summaries, returns.
SELECT DISTINCT s.run, s.step
FROM returns AS o
JOIN step_summaries AS s ON s.run = o.run AND s.step >= o.step AND s.time < o.began

-- view_events: Everything that happened beside the numbers, as one timeline. Grain: one row per event.
-- Inputs: health_records, weight_records, config_records, step_records with a correction, quarantine.
SELECT run, time, 'health' AS kind, event, severity, component AS source, step, message,
       {'count': count, 'sequences': sequences, 'tokens': tokens, 'details': details}::JSON::VARCHAR AS details
FROM health_records
UNION ALL BY NAME
SELECT run, coalesce(applied_at, time) AS time, 'weights' AS kind, 'weights' AS event, 'info' AS severity,
       concat_ws(' ', source, replica) AS source, step, concat('weights ', coalesce(version, 'of unknown version')) AS message,
       {'version': version, 'requested_at': requested_at, 'started_at': started_at, 'resumed_at': resumed_at,
        'pause_mode': pause_mode, 'cache_cleared': cache_cleared, 'tensors': tensors, 'checksum': checksum, 'calls': calls}::JSON::VARCHAR
       AS details
FROM weight_records
UNION ALL BY NAME
SELECT run, time, 'config' AS kind, kind AS event, 'info' AS severity, replica AS source, NULL::BIGINT AS step,
       concat(kind, ' ', fingerprint) AS message, document AS details
FROM config_records
WHERE kind <> 'weight_layout'
UNION ALL BY NAME
SELECT run, time, 'correction' AS kind, 'correction' AS event, 'info' AS severity, concat('rank ', rank) AS source, step,
       correction AS message, correction AS details
FROM step_records
WHERE correction IS NOT NULL
UNION ALL BY NAME
SELECT run, moved_at AS time, 'quarantine' AS kind, reason AS event, 'error' AS severity, origin AS source,
       NULL::BIGINT AS step, message, {'path': path, 'bytes': bytes}::JSON::VARCHAR AS details
FROM quarantine

-- view_fingerprints: Fingerprints of weights, of trainers and of engines. Grain: one row per reading. Input: weight_readings. Equal `fingerprint` and `layout`: equal
-- values wherever they were sampled. `version` null: nobody knew which weights these are.
SELECT * FROM weight_readings

-- view_metrics: Step metrics, long. Grain: one row per run, step and metric. Inputs: step_metrics, step_summaries.
SELECT m.run, m.step, m.metric, m.value, s.time, s.tokens, s.sequences, s.revision
FROM step_metrics AS m
LEFT JOIN step_summaries AS s USING (run, step)

-- view_raw: Raw records of one kind as the collectors wrote them. Grain: one row per sequence, token-level data as lists.
-- Inputs: Parquet files that raw_files lists in the same snapshot (see `views.place_files`), bad_rows. So nothing is seen twice while files are being
-- merged, and no other file is opened. `logprobe_same_bytes` fails on a file that is not what was written.
-- Columns are stated, not looked up: one damaged file would keep a home from opening. An earlier logprobe wrote fewer; those are null.
-- `run` is the name of its folder: DuckDB leaves out the files of runs that a statement does not ask for, and a damaged one keeps it from no other run.
SELECT * EXCLUDE (filename) REPLACE (TRY(url_decode(split_part(filename, '/', -3))) AS run)
FROM read_parquet(getvariable('logprobe_raw_' || {kind}), schema = {columns}, filename = true, hive_partitioning = false) ANTI JOIN bad_rows USING (segment_id, row)
WHERE logprobe_same_bytes(filename)

-- view_rollouts: What the engines sampled. Grain: one row per rollout record; what was made of several is left out. Input: rollout_sequences.
SELECT * EXCLUDE (logprobs, parts, decisions, clock_offset, clock_set, engine_started, engine_spans) FROM rollout_sequences WHERE parts IS NULL

-- view_returns: Returns to a checkpoint: when an attempt began, and the first step that it has trained again. Grain: run and attempt. Inputs: all_sequences.
SELECT run, began, min(step) AS step FROM all_sequences WHERE repeated_by IS NOT NULL GROUP BY run, began

-- view_scalars: Scalars of step records. Grain: one row per run, step and name. Input: step_records.
-- `value`: mean over the ranks that reported it, of each rank's newest value; `lowest` and `highest` of these, over `ranks` ranks.
WITH entries AS (
    SELECT run, step, rank, time, unnest(map_entries(scalars)) AS entry FROM step_records
),
newest AS (
    SELECT run, step, rank, entry.key AS name, arg_max(entry.value, coalesce(time, TIMESTAMPTZ '-infinity')) AS value
    FROM entries GROUP BY ALL
)
SELECT run, step, name, avg(value) AS value, min(value) AS lowest, max(value) AS highest, count(*)::INTEGER AS ranks
FROM newest
GROUP BY run, step, name

-- view_sequences: What is known of each trained sequence. Grain: one row per training record.
-- Inputs: training_sequences, its rollout record (rollout_sequences), statistics of the pair "backend" (null: not measured).
SELECT
    s.run, s.step, s.rank, s.sample_id, s.group_id, s.time, s.n_total, s.n_expected, s.reward, s.advantage_abs_sum,
    s.entropy_sum, s.entropy_n, s.weight_version, s.rollout_source, s.alignment, s.joined_by, s.token_match, s.length_match,
    s.received_max_abs_diff, s.routes_match, s.routes_expected, s.routes_compared, s.routes_equal, s.tags, s.raw_kept,
    r.request_id, r.replica, r.adapter, r.adapter_id, r.time AS rollout_time, r.n_tokens AS rollout_tokens,
    known_versions(engine_spans(r.spans, r.decisions, r.clock_offset, s.time), s.pieces) AS spans,
    version_source(engine_spans(r.spans, r.decisions, r.clock_offset, s.time), s.pieces, s.alignment) AS version_source,
    s.rollout_versions, r.prompt_length, r.prompt_hash,
    r.cached_prefix_tokens, r.finish_reason, r.sampling_id, r.engine_config_id,
    b.* EXCLUDE (run, step, segment_id, row, pair, n_expected),
    r.parts, s.segment_id, s.row
FROM training_sequences AS s
LEFT JOIN rollout_sequences AS r ON r.segment_id = s.rollout_segment AND r.row = s.rollout_row AND r.run = s.run
LEFT JOIN statistics AS b
    ON b.segment_id = s.segment_id AND b.row = s.row AND b.pair = 'backend' AND b.run = s.run AND b.step = s.step

-- view_steps: Steps. Grain: one row per run and step. Inputs: step_summaries, step_records. What was measured of them is in the views metrics and
-- scalars, and as maps in steps_of. `correction`: the newest of the lowest rank.
WITH records AS (
    SELECT run, step, time, correction FROM step_records
    QUALIFY row_number() OVER (PARTITION BY run, step ORDER BY rank NULLS LAST, time DESC) = 1
)
SELECT run, step, coalesce(s.time, r.time) AS time, s.tokens, s.sequences, r.correction, s.computed_at, s.revision
FROM step_summaries AS s FULL JOIN records AS r USING (run, step)

-- view_weights: Weight updates. Grain: one row per observation (a version seen by the trainer, and by each engine). Input: weight_records.
SELECT * FROM weight_records
