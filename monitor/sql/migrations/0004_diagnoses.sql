-- What is wrong with each run, as of the last time the diagnosis job looked. `document`: what `logprobe diagnose --json` prints.
CREATE TABLE diagnoses (
    run          VARCHAR PRIMARY KEY,
    step         BIGINT NOT NULL,         -- the last one it has seen
    revision     BIGINT NOT NULL,         -- the newest step_summaries.revision it has seen
    verdict      VARCHAR NOT NULL,        -- healthy | growing | critical | calibrating | no_data
    layer        VARCHAR NOT NULL,        -- semantic | inference_path | objective | none | unknown
    since_step   BIGINT,
    causes       VARCHAR[] NOT NULL,      -- of its findings, the weightiest first
    document     VARCHAR NOT NULL,        -- JSON
    diagnosed_at TIMESTAMPTZ NOT NULL
);

-- One row for each time that verdict, layer or credible causes of a run became others. Only appended to.
CREATE TABLE diagnosis_changes (
    run          VARCHAR NOT NULL,
    step         BIGINT NOT NULL,         -- the last one seen when it changed
    verdict      VARCHAR NOT NULL,
    layer        VARCHAR NOT NULL,
    since_step   BIGINT,
    causes       VARCHAR[] NOT NULL,
    document     VARCHAR NOT NULL,
    diagnosed_at TIMESTAMPTZ NOT NULL
);
