"""Search for the setting that makes the gap, and the arms it measures."""
