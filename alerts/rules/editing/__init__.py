"""Rules changed from the dashboard."""
