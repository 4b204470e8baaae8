"""Ships the segments of a node's spool to a bucket, or to an actor of a Ray cluster, each until it is safe there."""
