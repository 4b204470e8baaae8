-- What the correction controller remembers of each run: its state, and the directives the trainer was given. The directive file in
-- the home is written from here.
CREATE TABLE controllers (
    run        VARCHAR PRIMARY KEY,
    control    VARCHAR NOT NULL,          -- JSON, see logprobe.alerts.controller.situation.Control
    directives VARCHAR NOT NULL,          -- JSON, see logprobe.collectors.directives.Directives
    updated_at TIMESTAMPTZ NOT NULL
);

-- The audit: everything the controller did, declined to do, or was told to do. Only ever appended to.
CREATE TABLE controller_actions (
    run      VARCHAR NOT NULL,
    number   BIGINT NOT NULL,             -- 1, 2, 3 … within the run
    step     BIGINT,                      -- newest step with metrics then
    time     TIMESTAMPTZ NOT NULL,
    name     VARCHAR NOT NULL,            -- suggested | switched_on | refused | acknowledged | rolled_back | effect | …
    reason   VARCHAR NOT NULL,
    words    VARCHAR NOT NULL,
    severity VARCHAR NOT NULL,            -- info | warning | critical
    details  VARCHAR NOT NULL,            -- JSON
    PRIMARY KEY (run, number)
);
