"""Statistics of stored sequences computed again from their raw tokens."""
