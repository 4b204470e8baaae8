-- What engine and trainer say about the same tokens' weights, in tokens. Grain: run, where the trainer said anything. `compared`: tokens of which
-- both say the version; `differing`: of these, where they say different ones; `engine_older`, `engine_newer`: of these, where the
-- versions are numbers. Nothing is known of frozen steps. `first_step`, `last_step`: of those that differ. Inputs: training_sequences,
-- rollout_sequences. Parameters: $run, $first, $last (both steps included); null: all.
WITH stated AS (
    SELECT t.run, t.step, t.pieces
    FROM training_sequences AS t
    WHERE t.pieces IS NOT NULL AND t.rollout_segment IS NOT NULL AND t.run = coalesce($run, t.run)
        AND t.step >= coalesce($first::BIGINT, t.step) AND t.step <= coalesce($last::BIGINT, t.step)
), pieces AS (
    SELECT run, step, piece."end" - piece."start" AS tokens, piece.engine AS engine, piece.stated AS stated,
           try_cast(piece.engine AS BIGINT) - try_cast(piece.stated AS BIGINT) AS ahead
    FROM (SELECT run, step, unnest(pieces) AS piece FROM stated)
    WHERE engine IS NOT NULL AND stated IS NOT NULL
), counted AS (
    SELECT run, step, sum(tokens) AS compared, coalesce(sum(tokens) FILTER (engine <> stated), 0) AS differing,
           coalesce(sum(tokens) FILTER (ahead < 0), 0) AS engine_older, coalesce(sum(tokens) FILTER (ahead > 0), 0) AS engine_newer
    FROM pieces GROUP BY run, step
)
SELECT run, sum(compared)::BIGINT AS compared, sum(differing)::BIGINT AS differing, sum(engine_older)::BIGINT AS engine_older,
       sum(engine_newer)::BIGINT AS engine_newer, min(step) FILTER (differing > 0) AS first_step, max(step) FILTER (differing > 0) AS last_step
FROM counted
GROUP BY run
ORDER BY run
