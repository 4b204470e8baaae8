-- Metrics computed from the records of steps: of the step, by token bucket, and of steps whose sequences were folded into sums.

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

-- Old steps, folded: sums over their sequences instead of the sequences (see logprobe.monitor.store.folding). All of a step's rows are
-- written in the transaction that removes the sequences. Every column is a sum, a count or an extreme: what arrives late merges.
CREATE TABLE folded_steps (
    run       VARCHAR NOT NULL,
    step      BIGINT NOT NULL,
    time      TIMESTAMPTZ,                -- of its newest record
    sums      MAP(VARCHAR, DOUBLE),       -- by name, see logprobe.monitor.metrics.sums.Ledger
    folded_at TIMESTAMPTZ NOT NULL
);

-- Statistics of a pair, all sequences of the step together; `c_*`: sums over sequences of products of their sums.
CREATE TABLE folded_pairs (
    run       VARCHAR NOT NULL,
    step      BIGINT NOT NULL,
    pair      VARCHAR NOT NULL,           -- backend | update | total
    sequences BIGINT NOT NULL,            -- that have statistics of the pair
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
    c_nn DOUBLE, c_dd DOUBLE, c_dn DOUBLE, c_aa DOUBLE, c_an DOUBLE, c_qq DOUBLE, c_qn DOUBLE,
    sums      MAP(VARCHAR, DOUBLE)        -- by name
);

-- Weight versions of the tokens. Sequences with the same trainer's version and the same versions of tokens are alike.
CREATE TABLE folded_spans (
    run             VARCHAR NOT NULL,
    step            BIGINT NOT NULL,
    trainer_version VARCHAR,
    versions        VARCHAR[] NOT NULL,   -- of the tokens of such a sequence
    version         VARCHAR,              -- one of them
    tokens          BIGINT NOT NULL,
    alike           BIGINT NOT NULL       -- sequences
);

-- How the folded sequences were joined. Only appended to; rows of one step and the same kind add up.
CREATE TABLE folded_joins (
    run              VARCHAR NOT NULL,
    step             BIGINT NOT NULL,
    rollout_source   VARCHAR NOT NULL,
    token_match      BOOLEAN,
    length_match     BOOLEAN,
    engine_config_id VARCHAR,
    sequences        BIGINT NOT NULL,
    tokens           BIGINT NOT NULL,     -- under the mask
    with_tokens      BIGINT NOT NULL,     -- sequences with a token under the mask
    independent      BIGINT NOT NULL,     -- of these: r seen at the engine and t at the trainer
    reduced          BIGINT NOT NULL,     -- sequences without raw tokens
    versioned        BIGINT NOT NULL,
    seen_by_engine   BIGINT NOT NULL,
    received_differs BIGINT NOT NULL,
    with_entropy     BIGINT NOT NULL,
    rewarded         BIGINT NOT NULL,
    repeated         BIGINT NOT NULL      -- beyond the first of a sample in the step
);

-- Records of engines that went with folded steps. Only appended to; rows add up.
CREATE TABLE folded_rollouts (
    run              VARCHAR NOT NULL,
    sampling_id      VARCHAR,
    engine_config_id VARCHAR,
    rollouts         BIGINT NOT NULL,
    unversioned      BIGINT NOT NULL      -- without any weight version
);

-- A few sequences of folded steps, as they were then: the first ones by K3 of the pair "backend", and some by chance.
CREATE TABLE sampled_sequences (
    run VARCHAR NOT NULL, step BIGINT NOT NULL,
    place BIGINT,                         -- 1: added most to the step's K3; null: not measured
    by_chance BOOLEAN NOT NULL,           -- chosen by its sample id, whatever its numbers
    rank INTEGER, sample_id VARCHAR NOT NULL, group_id VARCHAR, time TIMESTAMPTZ, n_total INTEGER, n_expected INTEGER,
    reward DOUBLE, weight_version VARCHAR, rollout_source VARCHAR, alignment VARCHAR, token_match BOOLEAN, length_match BOOLEAN,
    tags MAP(VARCHAR, VARCHAR), raw_kept BOOLEAN NOT NULL, rollout_segment VARCHAR, rollout_row INTEGER,
    replica VARCHAR, spans STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[],
    cached_prefix_tokens INTEGER, finish_reason VARCHAR,
    n BIGINT, broken BIGINT, sum_d DOUBLE, sum_abs_d DOUBLE, sum_k3 DOUBLE, min_d DOUBLE, max_d DOUBLE,
    segment_id VARCHAR NOT NULL, row INTEGER NOT NULL
);

-- Profiles of folded steps: those of a window of consecutive steps together.
CREATE TABLE folded_profiles (
    run        VARCHAR NOT NULL,
    first_step BIGINT NOT NULL,           -- of the window, whether or not there are data of it
    last_step  BIGINT NOT NULL,
    pair       VARCHAR NOT NULL,
    dimension  VARCHAR NOT NULL,
    bucket     INTEGER,
    n          BIGINT NOT NULL,
    sum_d      DOUBLE NOT NULL,
    sum_abs_d  DOUBLE NOT NULL,
    sum_k3     DOUBLE NOT NULL
);
