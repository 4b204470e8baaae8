"""The demo: recorded runs, and one that is trained locally."""
