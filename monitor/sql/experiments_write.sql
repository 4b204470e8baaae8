-- One experiment that finished. Parameters: $run, $kind, $now, $author, $departs, $document.
INSERT INTO experiments (run, kind, finished_at, author, departs, document)
VALUES ($run, $kind, $now, $author, $departs, $document)
