"""Which setting makes the gap: the search, and the arms it measures."""
