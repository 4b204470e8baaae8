-- What the trainer said it applied in the steps $first to $last of $run. Grain: step and configuration, whichever ranks and micro-batches
-- name it. Inputs: step_records. `fingerprint`: null where what is stated is no such document. `masked`: mean over their tokens.
WITH stated AS (
    SELECT step, CASE WHEN json_valid(correction) THEN correction END AS document
    FROM step_records
    WHERE run = $run AND step BETWEEN $first AND $last AND correction IS NOT NULL
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
