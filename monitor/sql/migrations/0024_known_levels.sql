-- What healthy runs had, by setup: with it a new run of the same setup is judged from its first step on, see logprobe.monitor.diagnosis.memory.
CREATE TABLE known_levels (
    run      VARCHAR PRIMARY KEY,
    setup    VARCHAR NOT NULL,       -- digest of the settings
    settings VARCHAR NOT NULL,       -- what decides log-probs, by name: JSON
    low      DOUBLE NOT NULL,        -- K3 of tokens that the trainer's own weights sampled: the lower one of the run's beginning and its end
    high     DOUBLE NOT NULL,        -- the higher one
    noted_at TIMESTAMPTZ NOT NULL
);
