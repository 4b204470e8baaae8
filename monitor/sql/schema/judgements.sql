-- Judgements of runs: diagnoses and experiments.

-- What is wrong with each run, as of the last time the diagnosis job looked. `document`: what `logprobe show --json` prints.
CREATE TABLE diagnoses (
    run          VARCHAR PRIMARY KEY,
    step         BIGINT NOT NULL,         -- the last one it has seen
    revision     BIGINT NOT NULL,         -- the newest step_summaries.revision it has seen
    verdict      VARCHAR NOT NULL,        -- healthy | growing | critical | calibrating | no_data
    layer        VARCHAR NOT NULL,        -- semantic | inference_path | objective | none | unknown
    since_step   BIGINT,
    causes       VARCHAR[] NOT NULL,      -- of its findings, the weightiest first
    document     VARCHAR NOT NULL,        -- JSON
    diagnosed_at TIMESTAMPTZ NOT NULL,
    -- What it comes to: read for every run at once, where reading all documents would take too long.
    cause        VARCHAR,                 -- of the finding that people read first; null: none alarms
    share        DOUBLE,                  -- of K3 that it explains; null: not known
    urgency      VARCHAR,                 -- of that finding
    advice       VARCHAR,                 -- enable | do_not_enable | not_needed
    -- What a healthy run had: with it a new run of the same setup is judged from its first step on, see logprobe.monitor.judging.memory. Null: it is not
    -- known to be healthy, or its setup is not recorded.
    setup        VARCHAR,                 -- digest of the settings that decide log-probs
    low          DOUBLE,                  -- K3 of tokens that the trainer's own weights sampled: the lower one of the run's beginning and its end
    high         DOUBLE                   -- the higher one
);

-- Experiments on a run: a row for each `logprobe bisect` that finished, with (score) and without `--only-score`. Never deleted.
CREATE TABLE experiments (
    run         VARCHAR NOT NULL,
    kind        VARCHAR NOT NULL,         -- score | bisect
    finished_at TIMESTAMPTZ NOT NULL,
    author      VARCHAR,
    departs     VARCHAR NOT NULL,
    document    VARCHAR NOT NULL          -- JSON, as the command prints it
);
