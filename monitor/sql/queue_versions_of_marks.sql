-- Marks that may come late for rollout records. Grain: one row per run and machine. Inputs: incoming (Arrow): weight records.
INSERT INTO version_queue (run, machine, moment, wall)
SELECT run, machine, min(moment), min(epoch_us(applied_at)) FROM incoming WHERE moment IS NOT NULL GROUP BY run, machine
