-- A file is in the object store from now on, unless it has been merged or removed meanwhile. Parameters: $path, $url.
UPDATE raw_files SET location = $url WHERE path = $path AND location IS NULL RETURNING path
