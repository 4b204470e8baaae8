-- Values of the metrics $metrics in the steps $first to $last of $run. Grain: step and metric. Inputs: step_metrics, segments,
-- config_records. Coverage of the engine's log-probs is left out where there is no engine: it never sent a record nor its
-- configuration, no token ever had its log-prob, and no trainer says that it uses one (as adapters do, but for `use_vllm`: false).
WITH engine AS (
    SELECT EXISTS (SELECT 1 FROM segments WHERE run = $run AND kind = 'rollout')
        OR EXISTS (SELECT 1 FROM step_metrics WHERE run = $run AND metric = 'backend.coverage' AND value > 0)
        OR EXISTS (
            SELECT 1 FROM config_records
            WHERE run = $run AND (kind = 'engine_config' OR (
                kind = 'trainer_config' AND document ->> '$.framework' IS NOT NULL AND coalesce(document ->> '$.use_vllm', 'true') <> 'false'))
        ) AS in_use
)
SELECT step, metric, value
FROM step_metrics
WHERE run = $run AND step BETWEEN $first AND $last AND list_contains($metrics, metric) AND value IS NOT NULL
  AND (metric NOT IN ('backend.coverage', 'total.coverage') OR (SELECT in_use FROM engine))
