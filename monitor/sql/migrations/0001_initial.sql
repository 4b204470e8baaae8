-- Everything the service knows, except raw tokens (Parquet files listed in raw_files).
-- Times are UTC. `run` is part of every key: one home holds many runs.

-- One row per ingested spool segment: the ledger of exactly-once ingest. Written in the same transaction as its content.
CREATE TABLE segments (
    segment_id  VARCHAR PRIMARY KEY,      -- <quoted run>/<writer>/<file name>
    run         VARCHAR NOT NULL,
    writer      VARCHAR NOT NULL,
    sequence    INTEGER NOT NULL,
    kind        VARCHAR NOT NULL,
    rows        BIGINT NOT NULL,
    tokens      BIGINT NOT NULL,
    bytes       BIGINT NOT NULL,
    raw_file    VARCHAR,                  -- raw_files.path when its token lists were kept
    ingested_at TIMESTAMPTZ NOT NULL
);

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

-- Parquet files with raw tokens. A file not listed here does not exist for readers.
CREATE TABLE raw_files (
    path       VARCHAR PRIMARY KEY,       -- relative to the home
    run        VARCHAR NOT NULL,
    kind       VARCHAR NOT NULL,          -- training | rollout
    min_step   BIGINT,                    -- null for rollout
    max_step   BIGINT,
    rows       BIGINT NOT NULL,
    tokens     BIGINT NOT NULL,
    bytes      BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    compacted  BOOLEAN NOT NULL DEFAULT false
);

-- One row per sequence as the trainer saw it (training records, or statistics reduced next to the collector).
CREATE TABLE training_sequences (
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
    rollout_source  VARCHAR NOT NULL,     -- received | joined | missing | unaligned
    rollout_segment VARCHAR,              -- the rollout record of this sample: rollout_sequences.(segment_id, row);
    rollout_row     INTEGER,              -- null: none has arrived, or it could not be compared
    alignment       VARCHAR,              -- all | masked: which tokens of this row are the rollout's; null: neither or no record
    token_match     BOOLEAN,              -- same ids as the rollout record; null: no such record
    length_match    BOOLEAN,
    received_max_abs_diff DOUBLE,         -- |r as received − r at the source|, where both exist
    tags            MAP(VARCHAR, VARCHAR),
    raw_kept        BOOLEAN NOT NULL
);

-- Samples whose two sides may have become joinable since the join job last looked: one row per arrival on either side.
CREATE SEQUENCE join_mark START 1;
CREATE TABLE join_queue (
    run       VARCHAR NOT NULL,
    sample_id VARCHAR NOT NULL,
    mark      BIGINT NOT NULL DEFAULT nextval('join_mark')
);

-- Sufficient statistics per sequence and pair: the columns of logprobe.collectors.kernel.statistics, in its order.
CREATE TABLE statistics (
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
    n_zero_behaviour          BIGINT NOT NULL
);

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
    engine_config_id     VARCHAR
);

CREATE TABLE step_records (
    run        VARCHAR NOT NULL,
    step       BIGINT NOT NULL,
    rank       INTEGER,
    time       TIMESTAMPTZ,
    scalars    MAP(VARCHAR, DOUBLE),
    correction VARCHAR
);

CREATE TABLE weight_records (
    run           VARCHAR NOT NULL,
    time          TIMESTAMPTZ,
    version       VARCHAR,
    step          BIGINT,
    source        VARCHAR,
    replica       VARCHAR,
    requested_at  TIMESTAMPTZ,
    started_at    TIMESTAMPTZ,
    applied_at    TIMESTAMPTZ,
    resumed_at    TIMESTAMPTZ,
    pause_mode    VARCHAR,
    cache_cleared BOOLEAN,
    tensors       BIGINT,
    checksum      VARCHAR
);

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

-- What the step job computed: one row per step and metric of the catalog, value null where it cannot be measured. Only the step
-- job writes here, a step's rows all at once; without an index on the key the table is a sixth of the size and grows faster.
CREATE TABLE step_metrics (
    run    VARCHAR NOT NULL,
    step   BIGINT NOT NULL,
    metric VARCHAR NOT NULL,              -- "backend.k3_kl", "weight_lag_mean", …
    value  DOUBLE
);

CREATE TABLE step_summaries (
    run         VARCHAR NOT NULL,
    step        BIGINT NOT NULL,
    tokens      BIGINT NOT NULL,          -- tokens under the mask
    sequences   BIGINT NOT NULL,
    time        TIMESTAMPTZ,              -- of the newest record of the step
    computed_at TIMESTAMPTZ NOT NULL,
    revision    BIGINT NOT NULL,          -- grows with every recomputation of any step; readers poll for newer ones
    PRIMARY KEY (run, step)
);

-- Steps that received data since they were last computed. Ingest only appends (run, step); the step job deletes exactly the
-- marks it has read, so a step that receives data while it is being computed stays dirty. Hence no primary key.
CREATE SEQUENCE dirty_mark START 1;
CREATE TABLE dirty_steps (
    run  VARCHAR NOT NULL,
    step BIGINT NOT NULL,
    mark BIGINT NOT NULL DEFAULT nextval('dirty_mark')
);

CREATE TABLE job_runs (
    job         VARCHAR PRIMARY KEY,
    started_at  TIMESTAMPTZ,
    finished_at TIMESTAMPTZ,
    runs        BIGINT NOT NULL,
    failures    BIGINT NOT NULL,
    last_error  VARCHAR,
    progress    VARCHAR                   -- JSON: what the job did last and how far behind it is
);

CREATE SEQUENCE revision START 1;
