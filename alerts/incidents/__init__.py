"""Incidents: what is opened when a run becomes critical, holds what belongs to it, and is closed with a resolution."""
