-- The latest experiment of each kind on $run, the newest first. Grain: kind. Input: experiments.
SELECT kind, finished_at, author, departs, document
FROM experiments
WHERE run = $run
QUALIFY row_number() OVER (PARTITION BY kind ORDER BY finished_at DESC) = 1
ORDER BY finished_at DESC
