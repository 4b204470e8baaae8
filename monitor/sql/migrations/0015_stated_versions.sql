-- What the trainer knows of the weights that sampled its tokens: spans among all tokens and among those under the mask; null: nothing.
ALTER TABLE training_sequences ADD COLUMN rollout_versions STRUCT(
    "start" INTEGER, "end" INTEGER, sampled_start INTEGER, sampled_end INTEGER, "version" VARCHAR
)[];
