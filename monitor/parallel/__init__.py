"""One function over many items: by the threads of this machine, or as tasks on a Ray cluster."""
