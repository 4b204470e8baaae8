-- diagnosis_configs: Configuration documents of $run. Grain: fingerprint, with the number of rollout sequences that name it (sampling params and engine
-- configurations). `deciding`: see macro_deciding; null but of engines. Inputs: config_records, rollout_sequences.
WITH used AS (
    SELECT sampling_id AS fingerprint, count(*) AS sequences FROM rollout_sequences WHERE run = $run AND parts IS NULL GROUP BY ALL
    UNION ALL
    SELECT engine_config_id, count(*) FROM rollout_sequences WHERE run = $run AND parts IS NULL GROUP BY ALL
)
SELECT fingerprint, kind, document, time, sequences, CASE WHEN kind = 'engine_config' THEN deciding(document) END AS deciding
FROM (
    SELECT c.fingerprint, c.kind, any_value(c.document ORDER BY c.time DESC) AS document, min(c.time) AS time,
           coalesce(any_value(u.sequences), 0) AS sequences
    FROM config_records AS c
    LEFT JOIN used AS u USING (fingerprint)
    WHERE c.run = $run AND c.kind NOT IN ('weight_layout', 'checkpoint')
    GROUP BY c.fingerprint, c.kind
)
ORDER BY time, fingerprint

-- diagnosis_done: How far runs were diagnosed, and when something of them was last accepted or taken back, or an experiment finished (`changed_at`); null:
-- never. `diagnosed_at`: when the diagnosis that there is began. Grain: run. Inputs: diagnoses, user_actions, experiments.
SELECT run, revision, diagnosed_at, changed_at
FROM diagnoses
FULL JOIN (
    SELECT run, max(changed_at) AS changed_at
    FROM (
        SELECT d.run, time AS changed_at
        FROM user_actions AS a JOIN diagnoses AS d ON a.runs = d.run OR (contains(a.runs, '*') AND d.run GLOB a.runs)
        WHERE action IN ('finding accepted', 'acceptance withdrawn')
        UNION ALL SELECT run, finished_at FROM experiments
    )
    GROUP BY run
) USING (run)

-- diagnosis_kept: The diagnoses of $runs that there are. Grain: run. Inputs: diagnoses.
SELECT run, step, document FROM diagnoses WHERE list_contains($runs::VARCHAR[], run)

-- diagnosis_latest: The latest diagnosis of each run, or of $run alone (null: of all). Grain: run. Input: diagnoses.
SELECT run, step, verdict, layer, since_step, causes, document, diagnosed_at
FROM diagnoses
WHERE run = coalesce($run, run)
ORDER BY run

-- diagnosis_slices: Slices of some $steps of $run; $lowest and $highest of these. Grain: slice of a step, in the order of steps. Inputs: step_summaries.
SELECT s.step, unnest(s.slices, max_depth := 2)
FROM step_summaries AS s SEMI JOIN (SELECT unnest($steps::BIGINT[]) AS step) AS w ON w.step = s.step
WHERE s.run = $run AND s.step BETWEEN $lowest::BIGINT AND $highest::BIGINT
ORDER BY ALL

-- diagnosis_steps_on_their_way: Steps of $run that may still get records of its engine. Grain: step. Inputs: runs_on_their_way.
SELECT step FROM runs_on_their_way([$run], now()) ORDER BY step

-- diagnosis_weight_readings: Fingerprints of weights in $run, oldest first: the newest 4,000, and of the versions among them the newest of each process and adapter. Grain: reading. `step`: optimizer step whose result the version is.
-- Inputs: weight_readings, weight_records.
WITH steps AS (
    SELECT version, min(step) AS step FROM weight_records WHERE run = $run AND version IS NOT NULL GROUP BY version
), placed AS (
    SELECT *, row_number() OVER (ORDER BY coalesce(applied_at, time) DESC) AS place FROM weight_readings WHERE run = $run
), newest AS (
    SELECT * FROM placed
    QUALIFY place <= 4000 OR (version IS NOT NULL AND min(place) OVER (PARTITION BY version) <= 4000
        AND row_number() OVER (PARTITION BY source, replica, worker, adapter, version ORDER BY place) = 1)
)
SELECT r.source, r.replica, r.worker, r.version, coalesce(r.step, s.step) AS step, r.fingerprint, r.layout, r.reason, r.tensor_hashes, r.adapter
FROM newest AS r LEFT JOIN steps AS s USING (version)
ORDER BY coalesce(r.applied_at, r.time), r.source, r.replica, r.worker

-- diagnosis_weights: What trainer and engines said of weight versions in $runs, of each run after the time at its place in $after (null: all).
-- Grain: one row per observation, of each run the oldest first. `loaded`: the engine was seen to load weights. Input: weight_records.
WITH wanted AS (SELECT unnest($runs::VARCHAR[]) AS run, unnest($after::TIMESTAMPTZ[]) AS since)
SELECT r.run, r.version, r.step, r.source, r.replica, coalesce(r.applied_at, r.time) AS time, r.started_at IS NOT NULL AS loaded, r.pause_mode,
       r.cache_cleared, r.tensors, r.checksum, r.elements
FROM weight_records AS r JOIN wanted AS w ON w.run = r.run
WHERE w.since IS NULL OR coalesce(r.applied_at, r.time) > w.since
ORDER BY r.run, coalesce(r.applied_at, r.time), r.source
