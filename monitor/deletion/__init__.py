"""Deleting a run for good: its rows and files, and whatever of it arrives later."""
