-- How far each node's relay is behind with each run, as the node said last. Grain: run and node.
CREATE TABLE relay_nodes (
    run                 VARCHAR NOT NULL,
    node                VARCHAR NOT NULL,        -- the node's name for itself
    writer              VARCHAR NOT NULL,        -- whose token it shows
    seen_at             TIMESTAMPTZ NOT NULL,    -- on the service's clock
    segments            BIGINT,                  -- that waited on the node
    bytes               BIGINT,
    oldest_seconds      DOUBLE,                  -- age of the oldest of them; null: none waited
    clock_ahead_seconds DOUBLE,                  -- of the node's clock before the service's
    version             VARCHAR,                 -- of logprobe on the node
    problem             VARCHAR,                 -- what kept it from sending; null: nothing
    PRIMARY KEY (run, node)
);
