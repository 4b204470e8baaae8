-- A trained sequence may be made of several engine requests. `training_parts` lists those that the trainer names; the join makes one row
-- of rollout_sequences of them (`parts` is not null), with the log-probs in the places of the trainer's tokens under the mask.
ALTER TABLE training_sequences ADD COLUMN part_ids VARCHAR[];
ALTER TABLE training_sequences ADD COLUMN joined_by VARCHAR;    -- id | parts: how the rollout record was found; null: none was
ALTER TABLE rollout_sequences ADD COLUMN trajectory VARCHAR;    -- name of the sequence this request is a part of, as its caller gave it
ALTER TABLE rollout_sequences ADD COLUMN logprobs FLOAT[];      -- of a row made by the join; those of engines lie in raw files
ALTER TABLE rollout_sequences ADD COLUMN parts STRUCT(
    sample_id VARCHAR, segment_id VARCHAR, "row" INTEGER, "start" INTEGER, "end" INTEGER, prompt_length INTEGER,
    cached_prefix_tokens INTEGER, replica VARCHAR, finish_reason VARCHAR
)[];

CREATE TABLE training_parts (
    run        VARCHAR NOT NULL,
    part_id    VARCHAR NOT NULL,          -- sample id of a rollout record
    place      INTEGER NOT NULL,          -- 1, 2, … in the order of sampling
    segment_id VARCHAR NOT NULL,          -- of the training record
    row        INTEGER NOT NULL
);
