-- Growth of K3, judged once per complete step: see logprobe.monitor.diagnosis.growth. What alerts ask of a step, and from where the
-- diagnosis goes on.
CREATE TABLE step_growth (
    run            VARCHAR NOT NULL,
    step           BIGINT NOT NULL,
    value          DOUBLE,             -- K3 of the pair backend that was judged; null: not measured
    verdict        VARCHAR NOT NULL,   -- no_data, calibrating, healthy, growing, critical
    baseline       DOUBLE,             -- K3 of the run's own normal
    ratio          DOUBLE,             -- recent median over the baseline
    since_step     BIGINT,             -- where growth began
    doubling_steps DOUBLE,
    reasons        VARCHAR[],          -- null: neither growing nor critical
    PRIMARY KEY (run, step)
);
CREATE TABLE growth_states (
    run      VARCHAR PRIMARY KEY,
    step     BIGINT NOT NULL,          -- newest that was judged
    revision BIGINT NOT NULL,          -- of the run's newest summary when it was judged
    rule     VARCHAR NOT NULL,         -- fingerprint; another rule judges all over again
    changes  BIGINT[] NOT NULL,        -- steps at which the configuration changed, up to `step`
    state    VARCHAR NOT NULL          -- JSON, as `Tracker.state` gives it
);
