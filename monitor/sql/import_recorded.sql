-- Steps of $run that a collector has recorded. Grain: step. Inputs: training_sequences, segments. Parameters: $run.
SELECT DISTINCT step FROM training_sequences JOIN segments USING (segment_id) WHERE training_sequences.run = $run AND NOT starts_with(writer, 'import-')
