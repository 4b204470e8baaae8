"""Weights of an engine: readings of its workers, and observed updates."""
