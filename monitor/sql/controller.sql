-- controller_abandoned: Which of $steps (a list) of $run are of an attempt that was given up, see abandoned_steps. Grain: step. Inputs: abandoned_steps.
SELECT step FROM abandoned_steps WHERE run = $run AND list_contains($steps::BIGINT[], step)

-- controller_acks: What the trainer said it applied in the steps $first to $last of $run. Grain: step and configuration, whichever ranks and micro-batches
-- name it; what an attempt that was given up applied is not meant. Inputs: step_records, returns. `fingerprint`: null where what is stated is no such document. `masked`: mean over their tokens.
WITH stated AS (
    SELECT step, CASE WHEN json_valid(correction) THEN correction END AS document
    FROM step_records AS s
    WHERE run = $run AND step BETWEEN $first AND $last AND correction IS NOT NULL
        AND NOT EXISTS (FROM returns AS r WHERE r.run = s.run AND r.step <= s.step AND s.time < r.began)
),
reports AS (
    SELECT step, document ->> '$.fingerprint' AS fingerprint,
           try_cast(document ->> '$.report.masked_frac' AS DOUBLE) AS masked,
           coalesce(try_cast(document ->> '$.report.tokens' AS DOUBLE), 1) AS tokens
    FROM stated
)
SELECT step, fingerprint, sum(masked * tokens) / sum(tokens) FILTER (masked IS NOT NULL AND tokens > 0) AS masked
FROM reports
GROUP BY step, fingerprint
ORDER BY step, fingerprint

-- controller_act: Appends one action to the audit; one that was journaled and not committed is done again under its number, and the later
-- one counts. Parameters: $run, $number, $step, $now, $name, $reason, $words, $severity, $details.
INSERT OR REPLACE INTO controller_actions (run, number, step, time, name, reason, words, severity, details)
VALUES ($run, $number, $step, $now::TIMESTAMPTZ, $name, $reason, $words, $severity, $details)

-- controller_actions: The audit of a run's controller, oldest first. Grain: action. Inputs: controller_actions. Parameters: $run.
SELECT number, step, time, name, reason, words, severity, details
FROM controller_actions
WHERE run = $run
ORDER BY number

-- controller_coverage: The smallest coverage of the steps of each of $runs between its numbers in $first and $last, but for those whose engine records may still
-- be on their way. Grain: run. Inputs: step_metrics, runs_on_their_way.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
), complete AS (
    SELECT m.run, m.value
    FROM step_metrics AS m
    JOIN asked AS a ON a.run = m.run AND m.step BETWEEN a.first AND a.last
    ANTI JOIN runs_on_their_way($runs::VARCHAR[], now()) AS w ON w.run = m.run AND w.step = m.step
    WHERE m.metric = 'backend.coverage'
)
SELECT a.run, min(c.value) AS coverage FROM asked AS a LEFT JOIN complete AS c ON c.run = a.run GROUP BY a.run

-- controller_heard: Whether the trainer of $run can have heard of its newest correction, and apply it. Grain: one row. `made`: when the newest step from
-- $first on was made; what another clock dated (see dated_ahead) was made when it was computed, as far as is known. `told`: when the trainer was last told
-- of a correction. `impossible`: why it said last, in records of step $first or later, that it cannot apply one.
-- Inputs: step_summaries, controller_actions, health_records, returns.
SELECT
    (SELECT max(if(epoch(computed_at - time) > 900, computed_at, least(time, computed_at))) FROM step_summaries WHERE run = $run AND step >= $first) AS made,
    (SELECT max(time) FROM controller_actions WHERE run = $run AND name = 'switched_on') AS told,
    (SELECT max_by(message, time) FROM health_records AS h
     WHERE run = $run AND event = 'correction_impossible' AND step >= $first
        AND NOT EXISTS (FROM returns AS r WHERE r.run = h.run AND r.step <= h.step AND h.time < r.began)) AS impossible

-- controller_read: What the controller remembers of $runs (a list). Grain: run of which it remembers anything. Inputs: controllers, controller_actions.
SELECT run, control, directives, coalesce(actions, 0) AS actions
FROM controllers
LEFT JOIN (SELECT run, max(number) AS actions FROM controller_actions GROUP BY run) USING (run)
WHERE list_contains($runs::VARCHAR[], run)

-- controller_save: Remembers the controller's state of a run. Parameters: $run, $control, $directives, $now.
INSERT OR REPLACE INTO controllers (run, control, directives, updated_at)
VALUES ($run, $control, $directives, $now::TIMESTAMPTZ)

-- controller_trend: What a correction is judged by, step by step: K3 and the effective sample size of the pair `backend`, reward and gradient norm, and what
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
