"""One function over many items, by the threads of this machine; and the connection to a Ray cluster."""
