-- Marks that come late: the times of steps say which tokens they are about. Times are microseconds of the monotonic clock of `machine`.
ALTER TABLE rollout_sequences ADD COLUMN adapter VARCHAR;          -- LoRA: name and number; null: the weights alone
ALTER TABLE rollout_sequences ADD COLUMN adapter_id BIGINT;
ALTER TABLE rollout_sequences ADD COLUMN decisions STRUCT("end" INTEGER, "at" BIGINT, "last" BIGINT)[];  -- how `spans` came about
ALTER TABLE rollout_sequences ADD COLUMN machine VARCHAR;
ALTER TABLE rollout_sequences ADD COLUMN clock_offset BIGINT;      -- wall clock - monotonic clock
ALTER TABLE rollout_sequences ADD COLUMN engine_started BIGINT;    -- earlier marks belong to an earlier engine
ALTER TABLE weight_records ADD COLUMN adapter VARCHAR;
ALTER TABLE weight_records ADD COLUMN moment BIGINT;               -- of a mark: when it was made; null: no mark
ALTER TABLE weight_records ADD COLUMN machine VARCHAR;

-- Marks and rollout records that have not met yet: one row per segment of rollout records, or run and machine of marks.
CREATE SEQUENCE version_mark START 1;
CREATE TABLE version_queue (
    run        VARCHAR NOT NULL,
    segment_id VARCHAR,                  -- of rollout records; null: of marks
    machine    VARCHAR,                  -- of marks
    moment     BIGINT,                   -- of marks: the first one, by the monotonic clock of their machine, and by the wall clock
    wall       BIGINT,
    mark       BIGINT NOT NULL DEFAULT nextval('version_mark')
);
