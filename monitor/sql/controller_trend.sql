-- What a correction is judged by, step by step: K3 and the effective sample size of the pair `backend`, reward and gradient norm, and what
-- the trainer reports of the correction itself: the share of the tokens that it masked, the effective sample size of its weights.
-- Grain: step of $run from $first to $last that has any of it. Inputs: step_metrics, scalars, step_records.
WITH metrics AS (
    SELECT step, max(value) FILTER (metric = 'backend.k3_kl') AS k3, max(value) FILTER (metric = 'backend.ess') AS ess,
           max(value) FILTER (metric = 'reward') AS reward
    FROM step_metrics
    WHERE run = $run AND step BETWEEN $first AND $last AND metric IN ('backend.k3_kl', 'backend.ess', 'reward')
    GROUP BY step
), norms AS (
    SELECT step, value AS grad_norm FROM scalars WHERE run = $run AND step BETWEEN $first AND $last AND name = 'grad_norm'
), stated AS (
    SELECT step, CASE WHEN json_valid(correction) THEN correction END AS document
    FROM step_records
    WHERE run = $run AND step BETWEEN $first AND $last AND correction IS NOT NULL
), reports AS (
    SELECT step, coalesce(try_cast(document ->> '$.report.tokens' AS DOUBLE), 1) AS tokens,
           try_cast(document ->> '$.report.masked_frac' AS DOUBLE) AS masked,
           try_cast(document ->> '$.report.ess_after' AS DOUBLE) AS ess_after
    FROM stated
), corrected AS (
    SELECT step, sum(masked * tokens) / sum(tokens) FILTER (masked IS NOT NULL AND tokens > 0) AS masked,
           sum(ess_after * tokens) / sum(tokens) FILTER (ess_after IS NOT NULL AND tokens > 0) AS weight_ess
    FROM reports GROUP BY step
)
SELECT step, k3, ess, reward, grad_norm, masked, weight_ess
FROM metrics FULL JOIN norms USING (step) FULL JOIN corrected USING (step)
ORDER BY step
