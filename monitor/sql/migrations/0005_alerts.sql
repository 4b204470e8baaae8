-- Alerts: how each stands, what became of it, who takes care of it, and what is silenced. A run's alerts, their transitions, the
-- notifications and the cursor are written in one transaction.

-- How far the rules have looked at a run.
CREATE TABLE alert_cursors (
    run   VARCHAR PRIMARY KEY,
    step  BIGINT,                         -- newest step that all rules have seen
    rules VARCHAR NOT NULL                -- fingerprint of the rules in force then
);

-- One row per run, rule and slice that was looked at. `document` is what the rule goes on from.
CREATE TABLE alert_states (
    run         VARCHAR NOT NULL,
    rule        VARCHAR NOT NULL,
    slice       VARCHAR NOT NULL,         -- "weight_lag=2"; "": whole step
    fingerprint VARCHAR NOT NULL,         -- of the rule
    phase       VARCHAR NOT NULL,         -- normal | pending | firing | recovering | no_data | error
    reason      VARCHAR NOT NULL,         -- why, see logprobe.alerts.rules.states.Reason
    severity    VARCHAR NOT NULL,
    episode     VARCHAR,                  -- that people were told of last
    told        BOOLEAN NOT NULL,         -- whether they believe that it fires
    muted       VARCHAR,                  -- why an alert that fires is not told
    step        BIGINT,                   -- newest one looked at
    started_step BIGINT,                  -- of the episode
    changed_at  TIMESTAMPTZ,              -- when the phase began
    value       DOUBLE,
    words       VARCHAR,                  -- what was seen last
    document    VARCHAR NOT NULL,         -- JSON
    PRIMARY KEY (run, rule, slice)
);

-- Every change of phase. Only ever appended to.
CREATE SEQUENCE alert_transition_numbers;
CREATE TABLE alert_transitions (
    run      VARCHAR NOT NULL,
    key      VARCHAR NOT NULL,            -- the same whenever the same step is looked at
    number   BIGINT NOT NULL DEFAULT nextval('alert_transition_numbers'),
    rule     VARCHAR NOT NULL,
    slice    VARCHAR NOT NULL,
    severity VARCHAR NOT NULL,
    step     BIGINT,
    time     TIMESTAMPTZ NOT NULL,        -- of the step, or of the look
    before   VARCHAR NOT NULL,
    after    VARCHAR NOT NULL,
    reason   VARCHAR NOT NULL,
    value    DOUBLE,
    words    VARCHAR,
    PRIMARY KEY (run, key)
);

CREATE TABLE alert_acknowledgements (
    episode VARCHAR PRIMARY KEY,
    author  VARCHAR NOT NULL,
    reason  VARCHAR NOT NULL,
    time    TIMESTAMPTZ NOT NULL
);

CREATE TABLE alert_silences (
    id         VARCHAR PRIMARY KEY,       -- chosen by who asks for it, so that asking twice is asking once
    matchers   VARCHAR NOT NULL,          -- JSON: field or label → pattern
    author     VARCHAR NOT NULL,
    reason     VARCHAR NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);
