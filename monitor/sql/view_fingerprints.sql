-- Fingerprints of weights, of trainers and of engines. Grain: one row per reading. Input: weight_readings. Equal `fingerprint` and `layout`: equal
-- values wherever they were sampled. `version` null: nobody knew which weights these are.
SELECT * FROM weight_readings
