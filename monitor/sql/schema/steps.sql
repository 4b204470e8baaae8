-- Metrics computed from the records of steps: of the step, by token bucket, and of steps whose sequences are gone.

-- What was computed: one row per step and metric of the catalog, value null where it cannot be measured. Only ticks
-- write here, a step's rows all at once; without an index on the key the table is a sixth of the size and grows faster.
CREATE TABLE step_metrics (
    run    VARCHAR NOT NULL,
    step   BIGINT NOT NULL,
    metric VARCHAR NOT NULL,              -- "backend.k3_kl", "weight_lag_mean", …
    value  DOUBLE
);

CREATE SEQUENCE revision START 1;
CREATE TABLE step_summaries (
    run         VARCHAR NOT NULL,
    step        BIGINT NOT NULL,
    tokens      BIGINT NOT NULL,          -- tokens under the mask
    sequences   BIGINT NOT NULL,
    time        TIMESTAMPTZ,              -- of the newest record of the step
    computed_at TIMESTAMPTZ NOT NULL,
    revision    BIGINT NOT NULL,          -- grows with every recomputation of any step; readers poll for newer ones
    -- Where r came from, in sequences unless it says tokens; null of steps that were frozen before it was counted.
    received           BIGINT,            -- by the trainer
    seen               BIGINT,            -- recorded by the engine, too
    missing            BIGINT,            -- r is not known
    missing_tokens     BIGINT,
    unseen             BIGINT,            -- of those: not recorded by the engine, or its record is still on its way
    unseen_tokens      BIGINT,
    unaligned          BIGINT,            -- tokens of both sides cannot be put side by side
    other_ids          BIGINT,            -- other tokens than the engine's
    routed             BIGINT,            -- with routes of a mixture of experts
    versions_compared  BIGINT,            -- tokens of which engine and trainer both say the weight version
    versions_differing BIGINT,            -- of those: they say different ones
    engine_older       BIGINT,            -- of those: the engine's number is the smaller one
    engine_newer       BIGINT,
    PRIMARY KEY (run, step)
);

-- Token-level profiles: sums per step, pair and bucket, so that steps and runs merge by a plain GROUP BY SUM. Written by the profile
-- job, all rows of a step at once.
CREATE TABLE profiles (
    run       VARCHAR NOT NULL,
    step      BIGINT NOT NULL,
    pair      VARCHAR NOT NULL,           -- backend | update | total
    dimension VARCHAR NOT NULL,           -- position | turn | probability | log_ratio: see logprobe.monitor.analysis.profiles
    bucket    INTEGER,                    -- null: broken tokens, of which there are `n` and no sums
    n         BIGINT NOT NULL,
    sum_d     DOUBLE NOT NULL,
    sum_abs_d DOUBLE NOT NULL,
    sum_k3    DOUBLE NOT NULL
);

-- Which state of a step was profiled: its step_summaries.revision then, and how many tokens under the mask had raw records.
CREATE TABLE profiled_steps (
    run      VARCHAR NOT NULL,
    step     BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    tokens   BIGINT NOT NULL,
    PRIMARY KEY (run, step)
);

-- Steps whose sequences retention has removed (see logprobe.monitor.store.freezing): their rows in step_metrics and step_summaries are those of a
-- file of the archive of kind "frozen", and records of them that come late are not counted.
CREATE TABLE frozen_steps (
    run         VARCHAR NOT NULL,
    step        BIGINT NOT NULL,
    time        TIMESTAMPTZ,              -- of its newest record
    frozen_at   TIMESTAMPTZ NOT NULL,
    sequences   BIGINT NOT NULL,
    tokens      BIGINT NOT NULL,          -- under the mask
    with_tokens BIGINT NOT NULL,          -- sequences with a token under the mask
    independent BIGINT NOT NULL,          -- of these: r seen at the engine and t at the trainer
    engines     VARCHAR[]                 -- engine_config_id of the rollout records that its sequences were joined with
);

-- Statistics of a step and pair, of all sequences together; `c_*`: sums over sequences of products of their sums, which a standard error
-- clustered by sequence needs. Written by ticks; those of frozen steps are what the archive has.
CREATE TABLE step_pairs AS
SELECT run, step, pair, 0::BIGINT AS compared, COLUMNS('^n(_.*)?$'), COLUMNS('^sum_.*$'), min_d, max_d,
       sum_d AS c_nn, sum_d AS c_dd, sum_d AS c_dn, sum_d AS c_aa, sum_d AS c_an, sum_d AS c_qq, sum_d AS c_qn
FROM all_statistics LIMIT 0;

-- The pair "backend" of a step by what may tell causes apart. Grain: run, step and the columns from `version` to `lag`, each null where unknown.
-- Written by ticks; none of frozen steps.
CREATE TABLE step_slices (
    run       VARCHAR NOT NULL,
    step      BIGINT NOT NULL,
    version   BIGINT,                     -- number of the version that sampled, of a label that is none its place; token mean, rounded half up
    replica   VARCHAR,
    cached    BOOLEAN,                    -- prompt tokens came from the prefix cache
    in_flight BOOLEAN,                    -- sampled by more than one weight version
    lag       BIGINT,                     -- trainer's version − that of the sequence's tokens, token mean, rounded half up, in versions
    sequences BIGINT NOT NULL,            -- with a valid token
    n         BIGINT NOT NULL,            -- valid tokens
    d         DOUBLE NOT NULL,
    abs_d     DOUBLE NOT NULL,
    k3        DOUBLE NOT NULL,
    c_nn      DOUBLE NOT NULL,            -- see step_pairs
    c_aa      DOUBLE NOT NULL,
    c_an      DOUBLE NOT NULL
);
