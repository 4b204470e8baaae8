-- The newest mark of the queue of versions. Grain: one row, null when it is empty. Inputs: version_queue.
SELECT max(mark) AS high FROM version_queue
