-- An object that is to be removed, unless a commit makes it count. Parameters: $url.
INSERT OR IGNORE INTO doomed_objects (url, since) VALUES ($url, now())
