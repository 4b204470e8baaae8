-- Notes who takes care of an episode; the first one stays.
INSERT OR IGNORE INTO alert_acknowledgements (episode, author, reason, time) VALUES ($episode, $author, $reason, $time)
