-- What people say of runs: tags, an owner, and notes, also at a step. Each change is in alert_audit as well.
CREATE SEQUENCE annotation_numbers;
CREATE TABLE annotations (
    number     BIGINT PRIMARY KEY DEFAULT nextval('annotation_numbers'),
    run        VARCHAR NOT NULL,
    kind       VARCHAR NOT NULL,          -- tag | owner | note
    step       BIGINT,                    -- of a note; null: of the run as a whole
    words      VARCHAR NOT NULL,
    author     VARCHAR NOT NULL,
    time       TIMESTAMPTZ NOT NULL,
    removed_at TIMESTAMPTZ                -- null: it holds
);
