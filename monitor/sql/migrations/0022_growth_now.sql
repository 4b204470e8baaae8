-- How the growth of K3 stands at each run's newest step, complete or not: judged as steps are computed, see
-- logprobe.monitor.diagnosis.growth.stage. What is kept for good is in step_growth.
CREATE TABLE growth_now (
    run          VARCHAR PRIMARY KEY,
    step         BIGINT NOT NULL,       -- newest that was judged
    revision     BIGINT NOT NULL,       -- of the run's newest summary then
    verdict      VARCHAR NOT NULL,      -- no_data, calibrating, healthy, growing, critical
    changed_step BIGINT NOT NULL,       -- a diagnosis of an earlier step does not know this verdict
    judged_at    TIMESTAMPTZ NOT NULL
);
