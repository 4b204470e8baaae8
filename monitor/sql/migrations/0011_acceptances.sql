-- Findings that people live with: a row for each time that somebody accepted one, in force until it is withdrawn. Never deleted.
CREATE TABLE acceptances (
    run          VARCHAR NOT NULL,
    cause        VARCHAR NOT NULL,
    because      VARCHAR NOT NULL,
    up_to        DOUBLE,                  -- K3 that the cause may explain; null: a multiple of `was`
    was          DOUBLE,                  -- K3 that it explained when it was accepted; null: not known then
    author       VARCHAR,
    source       VARCHAR NOT NULL,        -- command | page | policy
    accepted_at  TIMESTAMPTZ NOT NULL,
    withdrawn_at TIMESTAMPTZ,             -- null: in force
    withdrawn_by VARCHAR
);
