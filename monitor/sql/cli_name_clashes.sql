-- Sample ids that do not name one sequence. Grain: run, for runs that have any. Inputs: training_sequences, rollout_sequences, segments.
-- Parameters: $run (null: all). `trained`: ids under which one step has sequences of different tokens; `engines`: ids that several writers
-- of rollout records used; `twice`: rollout records that repeat another one of their writer; `reused`: ids under which one writer recorded
-- rollouts of different tokens.
WITH trained AS (
    SELECT run, count(*) AS trained
    FROM (SELECT run FROM training_sequences WHERE run = coalesce($run, run)
          GROUP BY run, step, sample_id HAVING count(DISTINCT token_hash) > 1)
    GROUP BY run
), rollouts AS (
    SELECT r.run, r.sample_id, count(DISTINCT s.writer) AS writers, count(*) - count(DISTINCT (s.writer, r.token_hash, r.time)) AS repeats,
           count(DISTINCT (s.writer, r.token_hash)) > count(DISTINCT s.writer) AS reused
    FROM rollout_sequences AS r JOIN segments AS s USING (segment_id)
    WHERE r.run = coalesce($run, r.run) AND r.parts IS NULL
    GROUP BY r.run, r.sample_id
), engines AS (
    SELECT run, count(*) FILTER (writers > 1) AS engines, sum(repeats)::BIGINT AS twice,
           count(*) FILTER (reused) AS reused FROM rollouts GROUP BY run
)
SELECT run, coalesce(trained, 0) AS trained, coalesce(engines, 0) AS engines, coalesce(twice, 0) AS twice, coalesce(reused, 0) AS reused
FROM trained FULL JOIN engines USING (run)
WHERE coalesce(trained, 0) + coalesce(engines, 0) + coalesce(twice, 0) + coalesce(reused, 0) > 0
ORDER BY run
