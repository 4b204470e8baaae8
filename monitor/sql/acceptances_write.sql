-- Notes that a cause is accepted. Grain: one acceptance. Inputs: its parts.
INSERT INTO acceptances (run, cause, because, up_to, was, author, source, accepted_at)
VALUES ($run, $cause, $because, $up_to, $was, $author, $source, $now)
