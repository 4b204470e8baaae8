-- Experiments on a run: a row for each `logprobe score` or `logprobe bisect` that finished. Never deleted.
CREATE TABLE experiments (
    run         VARCHAR NOT NULL,
    kind        VARCHAR NOT NULL,         -- score | bisect
    finished_at TIMESTAMPTZ NOT NULL,
    author      VARCHAR,
    departs     VARCHAR NOT NULL,
    document    VARCHAR NOT NULL             -- JSON, as the command prints it
);
