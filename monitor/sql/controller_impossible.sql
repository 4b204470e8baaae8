-- Why the trainer of $run said that it cannot apply a correction, in records of step $first or later, the newest first.
-- Grain: record. Inputs: health_records.
SELECT step, message
FROM health_records
WHERE run = $run AND event = 'correction_impossible' AND step >= $first
ORDER BY time DESC
