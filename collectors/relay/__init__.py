"""Ships the segments of a node's spool to a service on another machine: Arrow Flight over TLS, each segment once."""
