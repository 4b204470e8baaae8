-- What has waited in the spool for longer than a judgement may take, as the service saw it last: of these records nothing is known yet.
CREATE TABLE spooled (
    run       VARCHAR NOT NULL,
    oldest_at TIMESTAMPTZ NOT NULL,  -- when the oldest file that waits was written
    newest_at TIMESTAMPTZ NOT NULL
);
