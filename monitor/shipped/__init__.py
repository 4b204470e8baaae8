"""Segments shipped by nodes, through a bucket or a Ray cluster, into the spool of the service's data directory."""
