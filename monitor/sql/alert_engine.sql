-- Whether $run has an engine. There is none if it never sent a record nor its configuration, no token ever had its log-prob, and no trainer
-- says that it uses one (as adapters do, but for `use_vllm`: false). Grain: one row. Inputs: segments, step_metrics, config_records.
SELECT EXISTS (SELECT 1 FROM segments WHERE run = $run AND kind = 'rollout')
    OR EXISTS (SELECT 1 FROM step_metrics WHERE run = $run AND metric = 'backend.coverage' AND value > 0)
    OR EXISTS (
        SELECT 1 FROM config_records
        WHERE run = $run AND (kind = 'engine_config' OR (
            kind = 'trainer_config' AND document ->> '$.framework' IS NOT NULL AND coalesce(document ->> '$.use_vllm', 'true') <> 'false'))
    ) AS in_use
