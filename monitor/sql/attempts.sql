-- attempts_sequences: Says of sequences which attempt has replaced them; null: none has. Grain: training record. Inputs: incoming (Arrow: key,
-- repeated_by, began).
UPDATE all_sequences AS t SET repeated_by = i.repeated_by, began = i.began
FROM incoming AS i WHERE i.run = t.run AND i.step = t.step AND i.segment_id = t.segment_id AND i.row = t.row

-- attempts_statistics: The same of their statistics. Grain: training record and pair. Inputs: as of attempts_sequences.
UPDATE all_statistics AS s SET repeated_by = i.repeated_by
FROM incoming AS i WHERE i.run = s.run AND i.step = s.step AND i.segment_id = s.segment_id AND i.row = s.row

-- attempts_step_records: The same of the step records of steps: of the rank of a sequence that was replaced, from before the newest attempt began.
-- To be run after attempts_sequences. Grain: step record. Inputs: incoming (Arrow: run, step), all_sequences.
UPDATE all_step_records AS r SET repeated_by = (
    SELECT min(o.repeated_by) FROM all_sequences AS o
    WHERE o.run = r.run AND o.step = r.step AND o.rank IS NOT DISTINCT FROM r.rank AND r.time < o.began
)
WHERE (r.run, r.step) IN (SELECT (run, step) FROM incoming)
