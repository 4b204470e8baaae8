-- Takes off the queue what has been looked at. Inputs: version_queue; $high: the last mark that was read.
DELETE FROM version_queue WHERE mark <= $high
