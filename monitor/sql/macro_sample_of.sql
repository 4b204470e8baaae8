-- Of the sequences placed, those whose group falls into the first of `parts` equal parts: answers to one prompt stay together. It is asked
-- before tokens are listed, which is what costs. Grain: sequence. Inputs: placed's t and r.
WHERE hash(coalesce(t.group_id, r.prompt_hash, t.sample_id)) % parts = 0
