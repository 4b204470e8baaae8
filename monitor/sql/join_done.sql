-- Takes samples off the join queue whose news have been dealt with. Inputs: join_queue; $high: the last mark that was read;
-- $resting: runs whose samples stay on it.
DELETE FROM join_queue WHERE mark <= $high AND NOT list_contains($resting, run)
