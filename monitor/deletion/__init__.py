"""Deleting a run for good: its rows, files and objects, and whatever of it arrives later."""
