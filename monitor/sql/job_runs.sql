-- What the jobs of the service did so far, as the service last wrote it down.
-- Grain: job. Inputs: job_runs. Parameters: none.
SELECT job, started_at, finished_at, runs, failures, last_error, progress FROM job_runs ORDER BY job
