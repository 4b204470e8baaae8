-- Sequences that are in the store more than once: found when the second copy comes, in the same transaction. One row per segment
-- that brought any. Of a healthy run there is none.
CREATE TABLE doubled (
    run        VARCHAR NOT NULL,
    kind       VARCHAR NOT NULL,          -- training | statistics | rollout
    segment_id VARCHAR NOT NULL,          -- the later one
    sequences  BIGINT NOT NULL,
    tokens     BIGINT NOT NULL,           -- of these, masked ones included
    first_step BIGINT,                    -- null for rollouts
    last_step  BIGINT,
    example    VARCHAR NOT NULL,          -- a sample id
    first_in   VARCHAR NOT NULL,          -- a segment that had it before
    found_at   TIMESTAMPTZ NOT NULL
);
