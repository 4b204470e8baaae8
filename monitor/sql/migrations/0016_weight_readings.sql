-- Fingerprints of weights, as trainers gave them and as engines read them (collectors/fingerprint.py). Grain: one row per reading.
CREATE TABLE weight_readings (
    run           VARCHAR NOT NULL,
    time          TIMESTAMPTZ,
    source        VARCHAR,               -- "trainer" | "worker" (a process of an engine)
    replica       VARCHAR,
    worker        VARCHAR,               -- which part of the model; null: all of it
    version       VARCHAR,               -- what the weights were said to be; null: nobody knew
    step          BIGINT,
    reason        VARCHAR,               -- "load" | "mark" | "resume" | "check" | "unannounced"; of a trainer null
    applied_at    TIMESTAMPTZ,           -- when it was read
    fingerprint   VARCHAR NOT NULL,      -- over all hashes
    layout        VARCHAR,               -- `config_records` of kind "weight_layout": what the hashes are of
    tensor_hashes UINTEGER[]
);
