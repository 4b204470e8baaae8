-- past_runs: Those of $runs that the store has records of. Grain: run. Inputs: segments, step_summaries.
SELECT DISTINCT run FROM (SELECT run FROM segments UNION ALL SELECT run FROM step_summaries) WHERE run IN (SELECT unnest($runs::VARCHAR[]))

-- past_steps: Steps of $run that have records and are not frozen. Grain: step. `begun`: the oldest training record that counts; `newest`: of all
-- records; microseconds. Inputs: all_sequences, all_step_records, step_summaries.
SELECT step, epoch_us(min(begun)) AS begun, epoch_us(max(newest)) AS newest, bool_or(met) AS met, bool_or(by_tokens) AS by_tokens
FROM (
    SELECT step, CASE WHEN repeated_by IS NULL THEN time END AS begun, time AS newest,
           coalesce(repeated_by IS NULL AND joined_by IN ('id', 'parts'), false) AS met,
           coalesce(repeated_by IS NULL AND joined_by IN ('tokens', 'ambiguous'), false) AS by_tokens
    FROM all_sequences WHERE run = $run
    UNION ALL SELECT step, NULL, time, false, false FROM all_step_records WHERE run = $run
)
WHERE step NOT IN (SELECT step FROM step_summaries WHERE run = $run AND frozen_at IS NOT NULL)
GROUP BY step

-- past_frozen: Frozen steps of $run, and when the newest record of each was made. Grain: step. Inputs: step_summaries.
SELECT step, coalesce(epoch_us(time), -9223372036854775808) AS time FROM step_summaries WHERE run = $run AND frozen_at IS NOT NULL

-- past_names: Names of training records of $run and of the parts that their trainer named. Grain: name and step, some more than once. Inputs:
-- all_sequences.
SELECT sample_id AS name, step FROM all_sequences WHERE run = $run
UNION ALL SELECT unnest(part_ids), step FROM all_sequences WHERE run = $run AND part_ids IS NOT NULL

-- past_sampled: Names of rollout records of $run, and of the sequences that they are parts of; of no step. Grain: name, some more than once. Inputs:
-- rollout_sequences.
SELECT sample_id AS name, 0 AS step FROM rollout_sequences WHERE run = $run AND parts IS NULL
UNION ALL SELECT DISTINCT trajectory, 0 FROM rollout_sequences WHERE run = $run AND parts IS NULL AND trajectory IS NOT NULL

-- past_ends: When the last steps of rollout records of $run began, on the clock of their machine and on the wall clock. Grain: one row. Inputs:
-- rollout_sequences.
SELECT max(decisions[-1]."last") AS "last",
       max(decisions[-1]."last" + if(clock_set IS NULL, coalesce(clock_offset, 0), 9007199254740992)) AS wall
FROM rollout_sequences WHERE run = $run AND len(decisions) > 0

-- past_labels: Versions that matter to steps of $run. Grain: step and version. Inputs: all_sequences, rollout_sequences.
WITH trained AS (
    SELECT step, weight_version, rollout_versions, rollout_segment, rollout_row FROM all_sequences WHERE run = $run
)
SELECT DISTINCT step, version FROM (
    SELECT step, weight_version AS version FROM trained
    UNION ALL SELECT step, unnest(list_transform(rollout_versions, lambda s: s."version")) FROM trained WHERE rollout_versions IS NOT NULL
    UNION ALL
    SELECT t.step, unnest(list_transform(r.spans, lambda s: s."version"))
    FROM trained AS t JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
) WHERE version IS NOT NULL

-- past_weights: Weight records of $run as they came. Grain: weight record. Inputs: all_weights.
SELECT run, segment_id, row, version, step, source, replica, machine, moment, seen, unless, adapter, time, requested_at, started_at, applied_at,
       resumed_at
FROM all_weights WHERE run = $run AND (source IS DISTINCT FROM 'worker' OR seen IS NOT NULL)

-- past_signs: What trainers of $run say of where they begin. Grain: health record. Inputs: health_records.
SELECT writer, event, epoch_us(time) AS time, step, details FROM health_records WHERE run = $run AND event IN ('started', 'training_begins')

-- past_last: When writers of $run have recorded training last. Grain: writer. Inputs: all_sequences, segments.
SELECT s.writer, epoch_us(max(t.time)) AS "last"
FROM all_sequences AS t JOIN segments AS s USING (segment_id)
WHERE t.run = $run
GROUP BY s.writer

-- past_trained: Training records of the steps of incoming (Arrow: step) of $run, with those of older attempts. Grain: training record. `kept`: its
-- tokens are in a raw file. Inputs: incoming, all_sequences, segments.
SELECT t.*, s.writer, s.kind = 'statistics' AS reduced, s.raw_file IS NOT NULL AS kept
FROM all_sequences AS t JOIN segments AS s USING (segment_id)
WHERE t.run = $run AND t.step IN (SELECT step FROM incoming)
ORDER BY t.step, t.segment_id, t.row

-- past_statistics: Statistics of those. Grain: training record and pair. Inputs: incoming (Arrow: step), all_statistics.
SELECT * EXCLUDE (repeated_by) FROM all_statistics WHERE run = $run AND step IN (SELECT step FROM incoming)

-- past_told: Step records of the steps of incoming (Arrow: step) of $run, with those of older attempts. Grain: step record. Inputs: incoming,
-- all_step_records.
SELECT step, rank, time, scalars, correction FROM all_step_records WHERE run = $run AND step IN (SELECT step FROM incoming)

-- past_named: Rollout records of $run with the names of incoming (Arrow: name), or that are parts of sequences with them. Grain: rollout record.
-- Inputs: incoming, rollout_sequences, segments.
SELECT r.*, s.raw_file IS NOT NULL AS kept
FROM rollout_sequences AS r JOIN segments AS s USING (segment_id)
WHERE r.run = $run AND r.parts IS NULL AND (r.sample_id IN (SELECT name FROM incoming) OR r.trajectory IN (SELECT name FROM incoming))

-- past_keyed: Rollout records of $run. Grain: row of incoming (Arrow: segment_id, row). Inputs: incoming, rollout_sequences, segments.
SELECT r.*, s.raw_file IS NOT NULL AS kept
FROM incoming AS i JOIN rollout_sequences AS r ON r.segment_id = i.segment_id AND r.row = i.row JOIN segments AS s ON s.segment_id = r.segment_id
WHERE r.run = $run AND r.parts IS NULL

-- past_alike: Rollout records of $run with the tokens of incoming (Arrow: token_hash), of no trajectory. Grain: rollout record. Inputs: incoming,
-- rollout_sequences, segments.
SELECT r.*, s.raw_file IS NOT NULL AS kept
FROM rollout_sequences AS r JOIN segments AS s USING (segment_id)
WHERE r.run = $run AND r.parts IS NULL AND r.trajectory IS NULL AND r.token_hash IN (SELECT token_hash FROM incoming)

-- past_alike_steps: Steps of $run that trained on the tokens of incoming (Arrow: token_hash). Grain: step. Inputs: incoming, training_sequences.
SELECT DISTINCT step FROM training_sequences WHERE run = $run AND token_hash IN (SELECT token_hash FROM incoming)

-- past_reached: Rollout records of $run that were not at their end at $moment, or at $wall on the wall clock. Grain: rollout record. Inputs:
-- rollout_sequences, segments.
SELECT r.*, s.raw_file IS NOT NULL AS kept
FROM rollout_sequences AS r JOIN segments AS s USING (segment_id)
WHERE r.run = $run AND r.parts IS NULL AND len(r.decisions) > 0
    AND (r.clock_set IS NOT NULL OR r.decisions[-1]."last" >= $moment OR r.decisions[-1]."last" + coalesce(r.clock_offset, 0) >= $wall)

-- past_parts: What records of $run that are made of several are made of. Grain: row of incoming (Arrow: segment_id, row: of the training record).
-- Inputs: incoming, rollout_sequences.
SELECT i.segment_id, i.row, r.n_tokens, r.spans, r.parts
FROM incoming AS i JOIN rollout_sequences AS r ON r.segment_id = 'parts/' || i.segment_id AND r.row = i.row
WHERE r.run = $run AND r.parts IS NOT NULL

-- past_files: Raw files of segments. Grain: segment. Inputs: incoming (Arrow: segment_id), segments.
SELECT DISTINCT s.segment_id, s.raw_file FROM incoming AS i JOIN segments AS s USING (segment_id) WHERE s.raw_file IS NOT NULL
