-- Sets sequences aside. Grain: training record. Inputs: incoming (Arrow: key, writer, repeated_by, began), training_sequences.
INSERT INTO older_sequences BY NAME
SELECT t.*, i.writer, i.repeated_by, i.began
FROM training_sequences AS t
JOIN incoming AS i ON i.run = t.run AND i.step = t.step AND i.segment_id = t.segment_id AND i.row = t.row
