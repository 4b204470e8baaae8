-- Steps of a run whose engine records may still be on their way. Grain: step. Inputs: steps_on_their_way. Parameters: $run.
SELECT step FROM steps_on_their_way($run, now()) ORDER BY step
