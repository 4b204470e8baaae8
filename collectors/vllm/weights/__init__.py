"""Weights of an engine: readings of its workers, and the updates that it saw."""
