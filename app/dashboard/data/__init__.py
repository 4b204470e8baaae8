"""What the dashboard holds of a run, and how it reads it."""
