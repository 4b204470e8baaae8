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
