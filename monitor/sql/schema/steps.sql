-- Metrics computed from the records of steps: of the step, by token bucket, and of steps whose sequences are gone.

-- What was computed: one row per step and metric of the catalog, value null where it cannot be measured. Only ticks
-- write here, a step's rows all at once; without an index on the key the table is a sixth of the size and grows faster.
CREATE TABLE step_metrics (
    run    VARCHAR NOT NULL,
    step   BIGINT NOT NULL,
    metric VARCHAR NOT NULL,              -- "backend.k3_kl", "weight_lag_mean", …
    value  DOUBLE
);

-- Statistics of a pair in a step, of all sequences together; `c_*`: sums over sequences of products of their sums, which a standard error
-- clustered by sequence needs.
CREATE TYPE step_pair AS STRUCT(
    pair VARCHAR,                         -- backend | update | total | reference | teacher
    compared BIGINT,                      -- sequences
    n BIGINT, n_expected BIGINT, sum_d DOUBLE, sum_d2 DOUBLE, sum_abs_d DOUBLE, sum_ratio_m1 DOUBLE, sum_ratio_m1_sq DOUBLE, sum_k3 DOUBLE,
    sum_reverse_kl DOUBLE, sum_abs_prob_diff DOUBLE, sum_exp_abs_d DOUBLE, min_d DOUBLE, max_d DOUBLE, sum_policy DOUBLE, sum_behaviour DOUBLE,
    sum_policy2 DOUBLE, sum_behaviour2 DOUBLE, sum_policy_behaviour DOUBLE, sum_policy_prob DOUBLE, sum_behaviour_prob DOUBLE,
    sum_policy_prob2 DOUBLE, sum_behaviour_prob2 DOUBLE, sum_policy_behaviour_prob DOUBLE, n_positive_d BIGINT, n_negative_d BIGINT,
    n_zero_d BIGINT, n_above BIGINT, n_below BIGINT, n_clamped BIGINT, n_advantage BIGINT, n_pg_clipped BIGINT, n_zero_policy BIGINT,
    n_nonfinite_behaviour BIGINT, n_nonfinite_policy BIGINT, n_sentinel_behaviour BIGINT, n_sentinel_policy BIGINT, n_positive_behaviour BIGINT,
    n_positive_policy BIGINT, n_zero_behaviour BIGINT,
    c_nn DOUBLE, c_dd DOUBLE, c_dn DOUBLE, c_aa DOUBLE, c_an DOUBLE, c_qq DOUBLE, c_qn DOUBLE
);

-- The pair "backend" of the sequences of a step that are alike in what may tell causes apart: the fields from `version` to `lag`, each null where
-- unknown.
CREATE TYPE step_slice AS STRUCT(
    version BIGINT,                       -- number of the version that sampled, of a label that is none its place; token mean, rounded half up
    replica VARCHAR,
    cached BOOLEAN,                       -- prompt tokens came from the prefix cache
    in_flight BOOLEAN,                    -- sampled by more than one weight version
    lag BIGINT,                           -- trainer's version − that of the sequence's tokens, token mean, rounded half up, in versions
    sequences BIGINT,                     -- with a valid token
    n BIGINT,                             -- valid tokens
    d DOUBLE, abs_d DOUBLE, k3 DOUBLE, c_nn DOUBLE, c_aa DOUBLE, c_an DOUBLE  -- see step_pair
);

-- One row per run and step. Written by ticks, a step's row at once; of frozen steps it is what the archive has, as are their rows in step_metrics.
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
    grouped            BIGINT,            -- sequences of a prompt with several answers
    copies             BIGINT,            -- of those: copies of another answer to their prompt that chance does not explain
    -- Tokens for the test of bit equality; null of steps that were frozen before they were counted.
    bits_compared      BIGINT,            -- of the trainer's own or unknown weights, with both log-probs recorded where they were computed
    bits_differing     BIGINT,            -- of the trainer's own weights, with two different log-probs
    bits_unknown       BIGINT,            -- the same of weights of an unknown version
    older_compared     BIGINT,            -- of older or several versions, with both log-probs recorded where they were computed
    older_differing    BIGINT,            -- of older or several versions, with two different log-probs
    pairs              step_pair[],       -- that were measured
    slices             step_slice[],      -- null of frozen steps
    -- Which state of the step was profiled, null: none; and how many tokens under the mask had raw records then.
    profiled           BIGINT,            -- the revision
    profiled_tokens    BIGINT,
    -- Of a step whose sequences retention has removed (see logprobe.monitor.store.freezing): records of it that come late are not counted.
    frozen_at          TIMESTAMPTZ,       -- null: it has its sequences
    engines            VARCHAR[]          -- engine_config_id of the rollout records that its sequences were joined with
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
