-- export_config_records: The config records of a run. Grain: record. Inputs: config_records. Parameters: $run.
SELECT * EXCLUDE (run) FROM config_records WHERE run = $run ORDER BY time

-- export_extent: What there is of a run: segments, when the first arrived, and raw records. Grain: one row. Inputs: segments, raw_files. Parameters: $run.
SELECT count(*) AS segments, min(ingested_at) AS since, (SELECT coalesce(sum(rows), 0)::BIGINT FROM raw_files WHERE run = $run AND kind IN ('training', 'rollout')) AS raw_records
FROM segments
WHERE run = $run

-- export_health_records: The health records of a run, without the markers of an import, which mean nothing in another home.
-- Grain: record. Inputs: health_records. Parameters: $run.
SELECT * EXCLUDE (run, writer) FROM health_records WHERE run = $run AND component IS DISTINCT FROM 'import' ORDER BY time

-- export_rollout: Raw records of some segments, as the collectors wrote them. Grain: sequence. Inputs: raw_rollout_in (the run's files). Parameters: $run, $segments.
SELECT * EXCLUDE (run, segment_id, row) FROM raw_rollout_in($rollout_files)
WHERE run = $run AND segment_id IN (SELECT unnest($segments::VARCHAR[])) ORDER BY segment_id, row

-- export_segments: Segments of a run with sequences. Grain: segment. Inputs: segments. Parameters: $run.
SELECT segment_id, kind, rows FROM segments
WHERE run = $run AND kind IN ('training', 'rollout', 'statistics') ORDER BY segment_id

-- export_step_records: The step records of a run. Grain: record. Inputs: step_records. Parameters: $run.
SELECT * EXCLUDE (run) FROM step_records WHERE run = $run ORDER BY time

-- export_steps: Steps of a run. Grain: step. Inputs: steps. Parameters: $run.
SELECT * FROM steps WHERE run = $run ORDER BY step

-- export_step_metrics: Metrics of steps of a run. Grain: step and metric. Inputs: step_metrics. Parameters: $run, $first, $last (both included).
SELECT step, metric AS name, value FROM step_metrics WHERE run = $run AND step BETWEEN $first AND $last

-- export_step_scalars: Scalars of steps of a run. Grain: step and name. Inputs: the view scalars. Parameters: $run, $first, $last (both included).
SELECT step, name, value FROM scalars WHERE run = $run AND step BETWEEN $first AND $last

-- export_tokens: The tokens of one step, masked ones included. Grain: token. Inputs: tokens_in (the run's files). Parameters: $run, $step.
SELECT * EXCLUDE (segment_id, row) FROM tokens_in($training_files, $rollout_files) WHERE run = $run AND step = $step ORDER BY sample_id, segment_id, row, position

-- export_training: Raw records of some segments, as the collectors wrote them. Grain: sequence. Inputs: raw_training_in (the run's files). Parameters: $run, $segments.
SELECT * EXCLUDE (run, segment_id, row) FROM raw_training_in($training_files)
WHERE run = $run AND segment_id IN (SELECT unnest($segments::VARCHAR[])) ORDER BY segment_id, row

-- export_weight_records: The weight records of a run, with the fingerprints that trainers gave and workers read. Grain: record. Inputs: all_weights.
-- Parameters: $run.
SELECT * EXCLUDE (run, segment_id, row, named, named_step, named_at, is_update, unannounced) FROM all_weights WHERE run = $run ORDER BY time
