-- Files in quarantine, the newest first. Grain: file. Input: quarantine. Parameters: $run (null: of all runs and of none).
SELECT path, origin, run, reason, message, bytes, moved_at
FROM quarantine
WHERE $run IS NULL OR run = $run
ORDER BY moved_at DESC, path
