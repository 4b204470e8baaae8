"""Rules changed and tried from the dashboard."""
