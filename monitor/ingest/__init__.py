"""Spool to store, exactly once: reading and checking segments, joining both sides."""
