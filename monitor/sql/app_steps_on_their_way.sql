-- Steps of a run whose engine records may still be on their way, or came and are about to be computed.
-- Grain: step. Inputs: steps_on_their_way, dirty_steps. Parameters: $run.
SELECT step FROM steps_on_their_way($run, now()) UNION SELECT step FROM dirty_steps WHERE run = $run ORDER BY step
