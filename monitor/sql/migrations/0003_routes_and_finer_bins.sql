-- Mixture of experts: layers whose routes a record has, null without any; and what the join counted, in (token, layer) pairs, null
-- unless both sides report routes.
ALTER TABLE rollout_sequences ADD COLUMN route_layers INTEGER;
ALTER TABLE training_sequences ADD COLUMN route_layers INTEGER;
ALTER TABLE training_sequences ADD COLUMN routes_match BOOLEAN;     -- both sides have the same layers; false: nothing was counted
ALTER TABLE training_sequences ADD COLUMN routes_expected BIGINT;   -- tokens under the mask × layers
ALTER TABLE training_sequences ADD COLUMN routes_compared BIGINT;   -- of these, with a route on both sides
ALTER TABLE training_sequences ADD COLUMN routes_equal BIGINT;      -- of these, with the same set of experts

-- Bins of log-ratios are 1 % wide instead of 5 %: the numbers of old bins mean something else now. Their steps are profiled again as
-- far as raw tokens are kept.
DELETE FROM profiles WHERE dimension = 'log_ratio';
UPDATE profiled_steps SET revision = -1;
