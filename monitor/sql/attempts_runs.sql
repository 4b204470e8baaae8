-- Runs of incoming (Arrow: run, step) that may have been trained again under their name: a rank said that it begins after another writer of
-- that rank had started, or said so twice; or an older attempt has been set aside already. Grain: run. Inputs: health_records, older_sequences.
WITH signs AS (
    SELECT run, writer, event, time, try_cast(details ->> '$.rank' AS INTEGER) AS rank
    FROM health_records
    WHERE event IN ('started', 'training_begins') AND run IN (SELECT run FROM incoming)
)
SELECT DISTINCT later.run
FROM signs AS later
JOIN signs AS earlier ON earlier.run = later.run AND earlier.rank IS NOT DISTINCT FROM later.rank AND earlier.time < later.time
    AND (earlier.writer <> later.writer OR earlier.event = later.event)
WHERE later.event = 'training_begins'
UNION
SELECT DISTINCT run FROM older_sequences WHERE run IN (SELECT run FROM incoming)
