-- An object that is gone, or that counts from now on. Parameters: $url.
DELETE FROM doomed_objects WHERE url = $url
