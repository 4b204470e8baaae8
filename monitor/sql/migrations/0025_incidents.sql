-- Incidents: opened when a run becomes critical, closed by a person or once the run was healthy for long. Written in the transaction of
-- the alerts that they follow from; what people say of one is in alert_audit, under its id.
CREATE TABLE incidents (
    id           VARCHAR PRIMARY KEY,     -- run, "#", number
    run          VARCHAR NOT NULL,
    number       BIGINT NOT NULL,         -- 1 for the run's first
    opened_at    TIMESTAMPTZ NOT NULL,
    opened_step  BIGINT,                  -- newest step then
    since_step   BIGINT,                  -- onset, by the diagnosis or else by the alert
    healthy      BIGINT NOT NULL,         -- steps in a row that the run has been healthy
    seen         BIGINT,                  -- step of the last look, if the run was healthy then
    calm         BOOLEAN NOT NULL,        -- closed, and the run has been better than critical since
    closed_at    TIMESTAMPTZ,
    closed_step  BIGINT,
    closed_by    VARCHAR,                 -- a name, or "logprobe"
    resolution   VARCHAR,
    cause        VARCHAR,                 -- of `document`
    diagnosed_at TIMESTAMPTZ,             -- of `document`
    document     VARCHAR                  -- JSON: the newest diagnosis of the trouble; a later healthy one does not replace it
);

-- Messages of an incident share a thread.
ALTER TABLE notifications ADD COLUMN incident VARCHAR;
