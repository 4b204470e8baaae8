"""Segments that nodes shipped, through a bucket or a Ray cluster, on their way into the spool of the service's home."""
