-- Readings of LoRA adapters: what workers read when they loaded one. Null: of the weights below them.
ALTER TABLE weight_readings ADD COLUMN adapter VARCHAR;
