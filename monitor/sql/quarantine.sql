-- quarantine_add: A file that goes into quarantine; once. Parameters: the columns.
INSERT INTO quarantine (path, origin, run, reason, message, bytes, moved_at)
SELECT $path, $origin, $run, $reason, $message, $bytes, $moved_at
WHERE NOT EXISTS (FROM quarantine WHERE path = $path)

-- quarantine_forget: A file that is no longer in quarantine. Parameters: $path.
DELETE FROM quarantine WHERE path = $path

-- quarantine_list: Files in quarantine, the newest first. Grain: file. Input: quarantine. Parameters: $run (null: of all runs and of none).
SELECT path, origin, run, reason, message, bytes, moved_at
FROM quarantine
WHERE $run IS NULL OR run = $run
ORDER BY moved_at DESC, path
