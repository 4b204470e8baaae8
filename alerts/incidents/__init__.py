"""Incidents: opened when a run becomes critical, closed once it was healthy for long."""
