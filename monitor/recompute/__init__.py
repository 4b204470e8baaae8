"""Statistics of stored sequences computed again from their raw tokens, on this machine or on a Ray cluster."""
