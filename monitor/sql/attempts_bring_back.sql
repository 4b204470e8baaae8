-- Makes sequences count again that were set aside. Grain: training record. Inputs: incoming (Arrow: key), older_sequences.
INSERT INTO training_sequences BY NAME
SELECT o.* EXCLUDE (writer, repeated_by, began)
FROM older_sequences AS o
JOIN incoming AS i ON i.run = o.run AND i.step = o.step AND i.segment_id = o.segment_id AND i.row = o.row
