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

-- Statistics of a step and pair, of all sequences together; `c_*`: sums over sequences of products of their sums.
CREATE VIEW pair_sums AS
SELECT run, step, pair, count(*) AS compared, sum(COLUMNS('^n(_.*)?$'))::BIGINT AS '\0', sum(COLUMNS('^sum_.*$')) AS '\0',
       min(min_d) FILTER (n > 0) AS min_d, max(max_d) FILTER (n > 0) AS max_d,
       sum(n::DOUBLE * n) AS c_nn, sum(sum_d * sum_d) AS c_dd, sum(sum_d * n) AS c_dn, sum(sum_abs_d * sum_abs_d) AS c_aa, sum(sum_abs_d * n) AS c_an,
       sum(sum_ratio_m1 * sum_ratio_m1) AS c_qq, sum(sum_ratio_m1 * n) AS c_qn
FROM statistics
GROUP BY run, step, pair;

-- The same of frozen steps.
CREATE TABLE frozen_pairs AS FROM pair_sums LIMIT 0;
