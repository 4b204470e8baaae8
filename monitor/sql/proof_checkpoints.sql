-- Checkpoints that the trainer of $run named, the newest of each weight version. Grain: version. Input: config_records.
SELECT document ->> 'version' AS version, max_by(document ->> 'checkpoint', time) AS checkpoint
FROM config_records
WHERE run = $run AND kind = 'checkpoint' AND document ->> 'version' IS NOT NULL
GROUP BY ALL
