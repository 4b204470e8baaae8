-- Notes who takes care of an episode, and until when (null: as long as it lasts). The first one stays; one for some time can be
-- replaced. Inputs: alert_acknowledgements.
INSERT INTO alert_acknowledgements (episode, author, reason, time, until)
VALUES ($episode, $author, $reason, $time, $until::TIMESTAMPTZ)
ON CONFLICT (episode) DO UPDATE
SET author = excluded.author, reason = excluded.reason, time = excluded.time, until = excluded.until
WHERE alert_acknowledgements.until IS NOT NULL
