-- How K3's growth was judged at steps of $runs, each between its numbers in $first and $last. Grain: run and step. Inputs: step_growth.
WITH asked AS (
    SELECT unnest($runs::VARCHAR[]) AS run, unnest($first::BIGINT[]) AS first, unnest($last::BIGINT[]) AS last
)
SELECT j.run, step, verdict, baseline, ratio, since_step, doubling_steps, reasons
FROM step_growth AS j JOIN asked AS a ON a.run = j.run AND j.step BETWEEN a.first AND a.last
ORDER BY j.run, step
