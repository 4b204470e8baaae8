"""Which weights an engine has: what its workers read of them, and what it saw of an update."""
