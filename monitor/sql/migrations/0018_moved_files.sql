-- Raw files that lie in an object store: see logprobe.monitor.objects.
ALTER TABLE raw_files ADD COLUMN location VARCHAR;  -- address of the object; null: the file is on the disk, at `path`

-- Objects to be removed: written before an upload begins and deleted with the commit that makes the object count, so that whatever
-- is interrupted leaves no object behind that nobody knows.
CREATE TABLE doomed_objects (
    url   VARCHAR PRIMARY KEY,
    since TIMESTAMPTZ NOT NULL
);
