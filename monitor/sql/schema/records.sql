-- Records, and the segments that they came in. The truth is in segments and in files of the archive, listed in raw_files.
-- Times are UTC. `run` is part of every key: one home holds many runs.

-- One row per segment that was taken in. Written in the same transaction as its content.
CREATE TABLE segments (
    segment_id  VARCHAR PRIMARY KEY,      -- <quoted run>/<writer>/<file name>
    run         VARCHAR NOT NULL,
    writer      VARCHAR NOT NULL,
    sequence    INTEGER NOT NULL,
    kind        VARCHAR NOT NULL,
    rows        BIGINT NOT NULL,
    tokens      BIGINT NOT NULL,
    bytes       BIGINT NOT NULL,
    raw_file    VARCHAR,                  -- file with its token lists, relative to the home: in the spool, then raw_files.path; null: gone
    ingested_at TIMESTAMPTZ NOT NULL,
    bad_rows    INTEGER[]                 -- that do not fit together: they are in the archive, and no reader sees them; null: none, as of a healthy run
);
CREATE VIEW bad_rows AS SELECT run, segment_id, unnest(bad_rows) AS row FROM segments WHERE bad_rows IS NOT NULL;

-- Files in quarantine because they cannot be trusted.
CREATE TABLE quarantine (
    path     VARCHAR NOT NULL,            -- where it lies now, relative to the home
    origin   VARCHAR NOT NULL,            -- where it was found, relative to the home
    run      VARCHAR,
    reason   VARCHAR NOT NULL,            -- SegmentError.reason
    message  VARCHAR NOT NULL,
    bytes    BIGINT NOT NULL,
    moved_at TIMESTAMPTZ NOT NULL
);

-- Files of the archive, of any kind of record. A file not listed here does not exist for readers.
CREATE TABLE raw_files (
    path       VARCHAR PRIMARY KEY,       -- relative to the home
    run        VARCHAR NOT NULL,
    kind       VARCHAR NOT NULL,          -- of its records: training | rollout | …
    min_step   BIGINT,                    -- null where records have none
    max_step   BIGINT,
    rows       BIGINT NOT NULL,
    tokens     BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL
);

-- One row per sequence as the trainer saw it (training records, or statistics reduced next to the collector).
-- Where a later attempt of the run has trained a step again, what it has replaced counts no more: here, in all_statistics and in
-- all_step_records `repeated_by` is the writer of the newest attempt at the step then, else null; see logprobe.monitor.live.attempts. What counts
-- is in the views training_sequences, statistics and step_records.
CREATE TABLE all_sequences (
    run             VARCHAR NOT NULL,
    step            BIGINT NOT NULL,
    rank            INTEGER,
    sample_id       VARCHAR NOT NULL,
    segment_id      VARCHAR NOT NULL,
    row             INTEGER NOT NULL,     -- within the segment; (segment_id, row) is the key
    group_id        VARCHAR,
    time            TIMESTAMPTZ,
    n_total         INTEGER NOT NULL,     -- tokens, masked ones included
    n_expected      INTEGER NOT NULL,     -- tokens under the mask: what should be measurable
    reward          DOUBLE,
    advantage_abs_sum DOUBLE,             -- over tokens under the mask; null: not reported
    entropy_sum     DOUBLE,
    entropy_n       INTEGER,              -- finite entropies under the mask
    weight_version  VARCHAR,              -- the trainer's
    token_hash      UBIGINT,              -- of the token ids under the mask
    full_hash       UBIGINT,              -- of all token ids
    rollout_source  VARCHAR NOT NULL,     -- received | joined | missing | unaligned
    rollout_segment VARCHAR,              -- the rollout record of this sample: rollout_sequences.(segment_id, row);
    rollout_row     INTEGER,              -- null: none has arrived, or it could not be compared
    alignment       VARCHAR,              -- all | masked: which tokens of this row are the rollout's; null: neither or no record
    token_match     BOOLEAN,              -- same ids as the rollout record; null: no such record
    length_match    BOOLEAN,
    received_max_abs_diff DOUBLE,         -- |r as received − r at the source|, where both exist
    tags            MAP(VARCHAR, VARCHAR),
    raw_kept        BOOLEAN NOT NULL,
    -- Mixture of experts. Counts are of (token, layer) pairs, null unless both sides report routes.
    route_layers    INTEGER,              -- whose routes the record has; null: none
    routes_match    BOOLEAN,              -- both sides have the same layers; false: nothing was counted
    routes_expected BIGINT,               -- tokens under the mask × layers
    routes_compared BIGINT,               -- of these, with a route on both sides
    routes_equal    BIGINT,               -- of these, with the same set of experts
    part_ids        VARCHAR[],            -- of a sequence made of several engine requests, in the order of sampling
    joined_by       VARCHAR,              -- id | parts: how the rollout record was found; null: none was
    -- What the trainer knows of the weights that sampled its tokens: spans among all tokens and among those under the mask.
    rollout_versions STRUCT(
        "start" INTEGER, "end" INTEGER, sampled_start INTEGER, sampled_end INTEGER, "version" VARCHAR
    )[],
    -- The same beside what the engine says, in tokens of the engine's record, or without one in tokens under the mask; null: the trainer said nothing.
    pieces STRUCT("start" INTEGER, "end" INTEGER, engine VARCHAR, stated VARCHAR)[],
    repeated_by     VARCHAR,
    began           TIMESTAMPTZ           -- when the attempt that replaced it began
);
CREATE VIEW training_sequences AS SELECT * EXCLUDE (repeated_by, began) FROM all_sequences WHERE repeated_by IS NULL;

-- Sufficient statistics per sequence and pair: the columns of logprobe.collectors.kernel.statistics, in its order.
CREATE TABLE all_statistics (
    run        VARCHAR NOT NULL,
    step       BIGINT NOT NULL,
    segment_id VARCHAR NOT NULL,
    row        INTEGER NOT NULL,
    pair       VARCHAR NOT NULL,          -- backend | update | total
    n                         BIGINT NOT NULL,
    n_expected                BIGINT NOT NULL,
    sum_d                     DOUBLE NOT NULL,
    sum_d2                    DOUBLE NOT NULL,
    sum_abs_d                 DOUBLE NOT NULL,
    sum_ratio_m1              DOUBLE NOT NULL,
    sum_ratio_m1_sq           DOUBLE NOT NULL,
    sum_k3                    DOUBLE NOT NULL,
    sum_reverse_kl            DOUBLE NOT NULL,
    sum_abs_prob_diff         DOUBLE NOT NULL,
    sum_exp_abs_d             DOUBLE NOT NULL,
    min_d                     DOUBLE NOT NULL,
    max_d                     DOUBLE NOT NULL,
    sum_policy                DOUBLE NOT NULL,
    sum_behaviour             DOUBLE NOT NULL,
    sum_policy2               DOUBLE NOT NULL,
    sum_behaviour2            DOUBLE NOT NULL,
    sum_policy_behaviour      DOUBLE NOT NULL,
    sum_policy_prob           DOUBLE NOT NULL,
    sum_behaviour_prob        DOUBLE NOT NULL,
    sum_policy_prob2          DOUBLE NOT NULL,
    sum_behaviour_prob2       DOUBLE NOT NULL,
    sum_policy_behaviour_prob DOUBLE NOT NULL,
    n_positive_d              BIGINT NOT NULL,
    n_negative_d              BIGINT NOT NULL,
    n_zero_d                  BIGINT NOT NULL,
    n_above                   BIGINT NOT NULL,
    n_below                   BIGINT NOT NULL,
    n_clamped                 BIGINT NOT NULL,
    n_advantage               BIGINT NOT NULL,
    n_pg_clipped              BIGINT NOT NULL,
    n_zero_policy             BIGINT NOT NULL,
    n_nonfinite_behaviour     BIGINT NOT NULL,
    n_nonfinite_policy        BIGINT NOT NULL,
    n_sentinel_behaviour      BIGINT NOT NULL,
    n_sentinel_policy         BIGINT NOT NULL,
    n_positive_behaviour      BIGINT NOT NULL,
    n_positive_policy         BIGINT NOT NULL,
    n_zero_behaviour          BIGINT NOT NULL,
    repeated_by               VARCHAR
);
CREATE VIEW statistics AS SELECT * EXCLUDE (repeated_by) FROM all_statistics WHERE repeated_by IS NULL;

-- One row per sequence as the engine saw it.
CREATE TABLE rollout_sequences (
    run                  VARCHAR NOT NULL,
    sample_id            VARCHAR NOT NULL,
    segment_id           VARCHAR NOT NULL,
    row                  INTEGER NOT NULL,
    request_id           VARCHAR,
    group_id             VARCHAR,
    replica              VARCHAR,
    time                 TIMESTAMPTZ,
    n_tokens             INTEGER NOT NULL,
    n_logprobs           INTEGER NOT NULL, -- finite ones
    logprob_sum          DOUBLE,
    token_hash           UBIGINT,
    spans                STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[],
    prompt_length        INTEGER,
    prompt_hash          VARCHAR,
    cached_prefix_tokens INTEGER,
    finish_reason        VARCHAR,
    sampling_id          VARCHAR,
    engine_config_id     VARCHAR,
    route_layers         INTEGER,          -- mixture of experts: layers whose routes the record has; null: none
    trajectory           VARCHAR,          -- name of the sequence this request is a part of, as its caller gave it
    -- Of a row that a tick made of several requests: log-probs in the places of the trainer's tokens under the mask, and the requests.
    -- Those of engines lie in raw files.
    logprobs             FLOAT[],
    parts STRUCT(
        sample_id VARCHAR, segment_id VARCHAR, "row" INTEGER, "start" INTEGER, "end" INTEGER, prompt_length INTEGER,
        cached_prefix_tokens INTEGER, replica VARCHAR, finish_reason VARCHAR
    )[],
    adapter              VARCHAR,          -- LoRA: name and number; null: the weights alone
    adapter_id           BIGINT,
    -- Times of the engine's steps say which tokens a late mark is about: microseconds of the monotonic clock of `machine`.
    decisions            STRUCT("end" INTEGER, "at" BIGINT, "first" BIGINT, "last" BIGINT)[],  -- how `spans` came about
    machine              VARCHAR,
    clock_offset         BIGINT,           -- wall clock - monotonic clock
    clock_set            BIGINT,           -- when the wall clock was set last; null: it was not
    engine_spans         STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[],  -- as the engine gave them, where marks say otherwise
    engine_started       BIGINT            -- earlier marks belong to an earlier engine
);

CREATE TABLE all_step_records (
    run         VARCHAR NOT NULL,
    step        BIGINT NOT NULL,
    rank        INTEGER,
    time        TIMESTAMPTZ,
    scalars     MAP(VARCHAR, DOUBLE),
    correction  VARCHAR,
    repeated_by VARCHAR
);
CREATE VIEW step_records AS SELECT * EXCLUDE (repeated_by) FROM all_step_records WHERE repeated_by IS NULL;

-- What was recorded of weights: versions as the trainer and each engine saw them, and fingerprints as trainers gave them and workers of engines
-- (source "worker") read them, see collectors/spool/schema.py.
CREATE TABLE all_weights (
    run           VARCHAR NOT NULL,
    time          TIMESTAMPTZ,
    version       VARCHAR,                -- of a worker's reading: what the weights were said to be; null: it was not known
    step          BIGINT,
    source        VARCHAR,                -- trainer | engine | worker (a process of an engine)
    replica       VARCHAR,
    requested_at  TIMESTAMPTZ,
    started_at    TIMESTAMPTZ,
    applied_at    TIMESTAMPTZ,            -- of a worker: when it was read
    resumed_at    TIMESTAMPTZ,
    pause_mode    VARCHAR,
    cache_cleared BOOLEAN,
    tensors       BIGINT,
    checksum      VARCHAR,
    adapter       VARCHAR,                -- LoRA: of the adapter that was loaded; null: of the weights below it
    moment        BIGINT,                 -- of a mark: when it was made, by the monotonic clock of `machine`; null: no mark
    machine       VARCHAR,
    -- Of an engine, when it saw its weights; and of weights that became others since `moment`: when a mark would name them.
    seen          STRUCT(began BIGINT, ended BIGINT, decided BIGINT, clock_offset BIGINT, clock_set BIGINT, engine_started BIGINT),
    unless        STRUCT(since BIGINT, until BIGINT),
    fingerprint   VARCHAR,                -- over all hashes
    layout        VARCHAR,                -- `config_records` of kind "weight_layout": what the hashes are of
    tensor_hashes UINTEGER[],
    worker        VARCHAR,                -- which part of the model; null: all of it
    reason        VARCHAR,                -- load | label | resume | check | use | checksum; of an engine's update the calls that loaded
    elements      MAP(VARCHAR, BIGINT),   -- of a trainer: sampled elements by what rounding to an engine's dtype does to them
    segment_id    VARCHAR,
    row           INTEGER,
    -- What marks make of a record of an engine: its version, the step of that mark and when it was made.
    named         VARCHAR,
    named_step    BIGINT,
    named_at      TIMESTAMPTZ,
    is_update     BOOLEAN,                -- false: a pause or a reset of the cache without new weights
    unannounced   BOOLEAN                 -- weights became others without a load, a label or a mark
);
-- Where engines were seen at work: `began` to `ended` on the clock of `machine`.
CREATE VIEW engines_seen AS
SELECT run, replica, machine, seen.engine_started AS began, max(seen.ended) AS ended, max_by(seen.clock_offset, seen.ended) AS clock_offset,
       max(seen.clock_set) AS clock_set, bool_and(cache_cleared) FILTER (source = 'worker') AS cache_cleared
FROM all_weights WHERE seen IS NOT NULL GROUP BY run, replica, machine, seen.engine_started;
-- An engine whose loads nobody sees has new weights if it is seen at work after they were marked.
CREATE VIEW marked_weights AS
SELECT m.run, e.replica, m.version, min(m.time) AS time, min(m.step) AS step, min(m.applied_at) AS applied_at, bool_and(e.cache_cleared) AS cache_cleared
FROM all_weights AS m JOIN engines_seen AS e ON e.run = m.run
    AND if(m.machine = e.machine, m.moment, epoch_us(m.applied_at) - e.clock_offset)
        BETWEEN if(m.machine = e.machine, e.began, greatest(e.began, e.clock_set)) AND e.ended
    AND (m.replica IS NULL OR m.replica IN (e.replica, regexp_replace(e.replica, '-dp[0-9]+$', '')))
LEFT JOIN (
    SELECT DISTINCT run, replica, named, true AS told FROM all_weights WHERE source = 'engine' AND is_update AND named IS NOT NULL
) AS u ON u.run = m.run AND u.replica IS NOT DISTINCT FROM e.replica AND u.named = m.version
WHERE m.moment IS NOT NULL AND m.seen IS NULL AND m.version IS NOT NULL AND m.adapter IS NULL AND u.told IS NULL
GROUP BY m.run, e.replica, m.version;
CREATE VIEW weight_records AS
SELECT run, time, if(seen IS NULL, version, named) AS version, coalesce(step, named_step) AS step, source, replica, requested_at, started_at,
       coalesce(applied_at, named_at) AS applied_at, resumed_at, pause_mode, cache_cleared, tensors, checksum, adapter,
       if(source = 'engine', reason, NULL) AS calls, elements
FROM all_weights WHERE source IS DISTINCT FROM 'worker' AND is_update IS DISTINCT FROM false
UNION ALL BY NAME
SELECT m.run, m.time, m.version, m.step, 'engine' AS source, m.replica, m.applied_at,
       -- The first version names weights that were there before; whether their loading cleared a cache is not known.
       if(m.applied_at > least(min(m.applied_at) OVER (PARTITION BY m.run, m.replica), f.first_at), m.cache_cleared, NULL) AS cache_cleared
FROM marked_weights AS m
LEFT JOIN (
    SELECT run, replica, min(coalesce(applied_at, named_at)) AS first_at
    FROM all_weights WHERE source = 'engine' AND is_update AND named IS NOT NULL GROUP BY run, replica
) AS f ON f.run = m.run AND f.replica IS NOT DISTINCT FROM m.replica;
CREATE VIEW weight_readings AS
SELECT run, time, source, replica, worker, if(seen IS NULL, version, named) AS version, coalesce(step, named_step) AS step,
       if(unannounced, 'unannounced', reason) AS reason, applied_at, fingerprint, layout, tensor_hashes, adapter
FROM all_weights WHERE fingerprint IS NOT NULL;

CREATE TABLE config_records (
    run         VARCHAR NOT NULL,
    time        TIMESTAMPTZ,
    fingerprint VARCHAR NOT NULL,
    kind        VARCHAR NOT NULL,
    replica     VARCHAR,
    document    VARCHAR NOT NULL
);

CREATE TABLE health_records (
    run       VARCHAR NOT NULL,
    writer    VARCHAR NOT NULL,
    time      TIMESTAMPTZ,
    component VARCHAR,
    event     VARCHAR,
    severity  VARCHAR,
    message   VARCHAR,
    count     BIGINT,
    sequences BIGINT,
    tokens    BIGINT,
    step      BIGINT,
    details   VARCHAR
);

-- How far each node is behind with shipping each run, as the node said last. Grain: run and node.
CREATE TABLE nodes (
    run                 VARCHAR NOT NULL,
    node                VARCHAR NOT NULL,        -- the node's name for itself
    seen_at             TIMESTAMPTZ NOT NULL,    -- on the service's clock
    segments            BIGINT,                  -- that waited on the node
    bytes               BIGINT,
    oldest_seconds      DOUBLE,                  -- age of the oldest of them; null: none waited
    clock_ahead_seconds DOUBLE,                  -- of the node's clock before the bucket's or the service's
    version             VARCHAR,                 -- of logprobe on the node
    problem             VARCHAR,                 -- what kept it from shipping; null: nothing
    PRIMARY KEY (run, node)
);

-- What has waited in the spool for longer than a judgement may take, as the service saw it last: of these records nothing is known yet.
CREATE TABLE spooled (
    run       VARCHAR NOT NULL,
    oldest_at TIMESTAMPTZ NOT NULL,  -- when the oldest file that waits was written
    newest_at TIMESTAMPTZ NOT NULL
);
