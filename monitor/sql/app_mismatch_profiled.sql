-- How far the profiles of $run are. Grain: one row. It is another one whenever a step was profiled. Inputs: profiled_steps.
SELECT count(*) AS steps, max(step) AS last_step, max(revision) AS revision, sum(tokens)::BIGINT AS tokens
FROM profiled_steps WHERE run = $run
