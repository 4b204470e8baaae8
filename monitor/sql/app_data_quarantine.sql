-- Files that were moved aside, the newest first, at most $limit of them; `total`: of all.
-- Grain: file. Input: quarantine. Parameters: $limit.
SELECT path, origin, run, reason, message, bytes, moved_at, count(*) OVER () AS total
FROM quarantine
ORDER BY moved_at DESC, path
LIMIT $limit
